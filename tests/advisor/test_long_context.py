"""Sequences of 4k to 1M over context-parallel ranks: what must hold whatever the constants are."""

from typing import Any

import pytest

from advisor.answer.answer import Answer
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import parts_of
from advisor.models.layer_kind import DENSE
from advisor.models.presets import load_model
from advisor.request.request import Request, SearchScope
from advisor.search.advise import advise
from tests.advisor.jobs import batches, job_config, parallel

NO_MASK = "job.create_attention_mask=false"
IN_PLACE = "model.cross_entropy_fusion=te"
"""The loss that writes its gradient over the logits."""
LENGTHS = {4096: 1, 32768: 2, 131072: 8, 524288: 32, 1048576: 64}
"""Sequence length and the CP that leaves a rank 16k positions of it (4k of the first)."""


def _ask(length: int, cp: int, *overrides: str, gpus: int = 64, **fields: Any) -> Answer:
    return advise(
        Request(
            model="llama3_8b",
            gpus=f"{gpus}xH100",
            **batches(length, 1, gpus),
            **parallel(tp=1, pp=1, cp=cp),
            overrides=overrides,
            **{"quick": True, **fields},
        )
    )


def _none(length: int, cp: int, *overrides: str) -> Evaluation:
    advice = _ask(length, cp, NO_MASK, *overrides, recompute=("none",))
    return advice.candidates[0].evaluation


def test_every_length_fits_on_the_ranks_that_it_needs() -> None:
    asked = ("none", "selective:mlp", "full:uniform:1")
    found = [
        _ask(length, cp, NO_MASK, IN_PLACE, recompute=asked).candidates[0].evaluation
        for length, cp in LENGTHS.items()
    ]
    assert all(evaluation.fits for evaluation in found)
    per_token = [e.step_time_seconds / e.job.config.seq_length for e in found]
    assert per_token == sorted(per_token), "attention grows with the square of the length"
    assert per_token[-1] > 10 * per_token[0]


@pytest.mark.parametrize("kind", ["p2p", "all_gather"])
def test_kept_bytes_are_linear_in_the_positions_of_a_rank(kind: str) -> None:
    layers = {
        length: _none(length, cp, f"layout.cp_comm_type={kind}").detail.saved_bytes_per_layer
        for length, cp in LENGTHS.items()
    }
    dense = [found[DENSE] for found in layers.values()]
    assert dense == [dense[1] // 4, *[dense[1]] * 4]


def test_more_ranks_need_less_and_take_less_time_a_microbatch() -> None:
    found = [_none(131072, cp) for cp in (4, 8, 16, 32)]
    peaks = [evaluation.peak.peak_reserved_bytes for evaluation in found]
    assert peaks == sorted(peaks, reverse=True)
    forward = [e.time_seconds.forward / e.job.num_microbatches for e in found]
    assert forward == sorted(forward, reverse=True)


def test_the_mask_of_all_pairs_is_what_does_not_fit_and_the_flag_says_so() -> None:
    """512k squared is 256 GiB while it is cut, and 8 GiB on each of 32 ranks."""
    advice = _ask(524288, 32, gpus=32)
    best = advice.candidates[0].evaluation
    assert not best.fits
    assert best.peak.peak_allocated_bytes > 264 * 2**30
    remedy = advice.remedies[0]
    assert remedy.change.startswith("job.create_attention_mask=false")
    assert remedy.effect_bytes < -150 * 2**30


@pytest.mark.parametrize(
    ("framework", "packed", "loads"),
    [
        (Framework.MEGATRON_LM, None, True),
        (Framework.MEGATRON_LM, 2048, False),
        (Framework.MEGATRON_BRIDGE, None, False),
        (Framework.NEMO, None, False),
    ],
)
def test_who_loads_a_mask(framework: Framework, packed: int | None, loads: bool) -> None:
    config = job_config(8, 1, 1, framework=framework, mean_packed_length=packed)
    _, run = parts_of(framework).jobs.configure(load_model("llama3_8b"), config, frozenset())
    assert run.loads_attention_mask is loads


def test_another_kind_is_found_and_is_searched() -> None:
    near = _ask(131072, 8, NO_MASK, IN_PLACE, gpus=8, quick=False)
    assert near.fastest_found.changes["layout.cp_comm_type"] == "all_gather"
    searched = _ask(131072, 8, NO_MASK, gpus=8, search=SearchScope.LAYOUT)
    kinds = {c.evaluation.job.layout.cp_comm_type for c in searched.candidates}
    assert kinds >= {"p2p", "a2a"}


def test_a_kind_that_no_setting_can_run_with_is_one_line() -> None:
    with pytest.raises(
        UserError, match="window_size = 128,0 cannot be combined with cp_comm_type = p2p"
    ):
        advise(Request(model="gpt_oss_20b", gpus="8xH100", context_parallel_size=2))


def test_a_release_of_transformer_engine_is_a_number() -> None:
    with pytest.raises(
        UserError, match=r"job.transformer_engine_version = new: must be a release number"
    ):
        _none(4096, 1, "job.transformer_engine_version=new")


@pytest.mark.slow
def test_a_search_leaves_out_the_mask_that_no_layout_makes_small_enough() -> None:
    asked = {"model": "llama3_8b", "gpus": "8xH100", "seq_length": 262144, "global_batch_size": 8}
    found = advise(Request(**asked, search=SearchScope.LAYOUT))
    assert found.fits
    assert not found.candidates[0].evaluation.job.config.loads_attention_mask
    kept = advise(
        Request(**asked, search=SearchScope.LAYOUT, overrides=("job.create_attention_mask=true",))
    )
    assert not kept.fits
    assert any("mask" in one.why for one in kept.remedies)
