"""Sparse attention (DSA) on a toy: what is refused, and what an indexer without a loss costs; its
bytes stand in tests/oracles."""

from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.job.layout import ParallelLayout, check_model_fits_layout
from advisor.layers.megatron.latent_attention import latent_attention_operators
from advisor.layers.operators import Operator
from advisor.models.options import AttentionVariant, TransformerImpl
from advisor.plan.flops import model_flops
from advisor.search.step_time_band import step_time_error
from tests.advisor.jobs import job_config, job_of
from tests.advisor.toys import LLAMA, latent, toy_shape

INDEXER = {"dsa_indexer_n_heads": 2, "dsa_indexer_head_dim": 8, "dsa_indexer_topk": 4}
DSA = latent(
    LLAMA,
    *(16, 8, 4, 6),
    q_lora_rank=32,
    experimental_attention_variant=AttentionVariant.DSA,
    **INDEXER,
)
PAIRS = 2 * 32 * 32
TE = TransformerImpl.TRANSFORMER_ENGINE


def operators(**changes: Any) -> dict[str, Operator]:
    shape = toy_shape(DSA, **changes)
    return {one.name: one for one in latent_attention_operators(shape, shape.hidden("normed"))}


def test_all_scores_are_computed_in_fp32() -> None:
    """Of four heads of this rank 16 + 4 wide; of two of the indexer 8 wide, on every rank."""
    found = operators()
    scores, index = found["attention_scores"], found["index_scores"]
    assert (scores.fp32, scores.attention_flops) == (True, 2 * PAIRS * 4 * (16 + 4))
    assert (index.fp32, index.attention_flops) == (True, 2 * PAIRS * 2 * 8)
    loss = operators(dsa_indexer_loss_coeff=0.1)["index_scores"]
    assert loss.attention_flops == index.attention_flops + scores.attention_flops


def test_without_a_loss_the_indexer_keeps_nothing() -> None:
    for learns in (False, True):
        found = operators(dsa_indexer_loss_coeff=0.1 if learns else None)
        for name in ("index_wq_b", "index_wk", "index_scores"):
            assert (bool(found[name].saved), found[name].no_grad) == (learns, not learns)


def test_flops_are_counted_as_megatron_counts_them() -> None:
    """training.py num_floating_point_operations knows nothing of an indexer."""
    plain = replace(DSA, experimental_attention_variant=None)
    assert model_flops(DSA, 32, 2, 128) == model_flops(plain, 32, 2, 128)


@pytest.mark.parametrize(
    ("framework", "version", "says"),
    [
        ("megatron_lm", "0.16", "megatron-core 0.16 builds no GPT with it; use"),
        ("megatron_lm", "0.18", "megatron-core 0.18 has another form of it; use"),
        ("megatron_bridge", "0.5", "has another form of it; use --framework-version 0.19 of"),
    ],
)
def test_a_release_that_cannot_train_it_says_which_can(framework, version, says) -> None:
    jobs = parts_of(framework).jobs
    config = job_config(32, 1, 8, framework=framework, framework_version=version)
    with pytest.raises(UserError, match=says):
        jobs.configure(replace(DSA, transformer_impl=TE), config, frozenset())
    with pytest.raises(UserError, match="transformer_impl = local: has no dsa layers"):
        jobs.configure(DSA, config, frozenset())


def test_context_parallelism_is_not_modelled() -> None:
    with pytest.raises(UserError, match=r"context_parallel_size = 2: is not modelled with sparse"):
        check_model_fits_layout(DSA, ParallelLayout(context_parallel_size=2))


@pytest.mark.parametrize("name", [*INDEXER, "multi_latent_attention"])
def test_what_it_needs(name: str) -> None:
    with pytest.raises(UserError, match="needs multi_latent_attention, dsa_indexer_n_heads, "):
        replace(DSA, **{name: None if name in INDEXER else False})


def test_nobody_timed_it() -> None:
    for model, band in ((LLAMA, 0.08), (DSA, 0.5)):
        job = job_of(model, ParallelLayout(), job_config(32, 1, 8))
        assert step_time_error(job, load_calibration(job.gpu)) == pytest.approx(band, abs=0.02)
