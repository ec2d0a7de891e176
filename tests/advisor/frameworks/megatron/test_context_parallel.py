"""Context parallelism: what is refused in which release, and how it is written."""

import shlex
from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.frameworks.megatron.bridge import bridge_layout_overrides
from advisor.frameworks.megatron.flags import layout_flags, nemo_layout_overrides
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules.engine import check
from advisor.frameworks.megatron.setting import NONE
from advisor.frameworks.names import Framework
from advisor.job.layout import ParallelLayout
from advisor.lint.target import lint_target
from advisor.models.options import CpCommType, RopeType, SoftmaxType
from tests.advisor.frameworks.megatron.test_flags import parsed

V19 = resolve_revision(Framework.MEGATRON_LM, "0.19")
LATENT = {
    "multi_latent_attention": True,
    "kv_lora_rank": 16,
    "qk_head_dim": 16,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 16,
    "rope_type": RopeType.ROPE,
}
CP4 = "--context-parallel-size 4"
PACKED = {"mean_packed_length": 512}
SINKS = {"softmax_type": SoftmaxType.LEARNABLE}


def _job(make_job: Any, kind: str, **changes: Any) -> Any:
    sizes = (2, 2) if kind == "a2a+p2p" else None
    return make_job(
        context_parallel_size=4,
        cp_comm_type=CpCommType(kind),
        hierarchical_context_parallel_sizes=sizes,
        **changes,
    )


@pytest.mark.parametrize(
    ("kind", "changes", "version", "rule"),
    [
        *((kind, {}, "0.16", None) for kind in CpCommType),
        ("p2p", {"window_size": 128}, "0.19", "cp_window"),
        ("a2a+p2p", {"window_size": 128}, "0.19", "cp_window"),
        ("all_gather", {"window_size": 128}, "0.19", None),
        ("all_gather", SINKS, "0.19", "cp_sinks"),
        ("a2a", {"window_size": 128, **SINKS}, "0.19", None),
        ("a2a", LATENT, "0.16", "cp_latent_attention"),
        ("a2a", LATENT, "0.17", None),
        ("a2a", {**LATENT, "transformer_engine_version": "2.14.1"}, "0.19", "cp_latent_attention"),
        ("p2p", LATENT, "0.16", None),
        (
            "p2p",
            {**LATENT, "precision": "fp8_current", "fp8_dot_product_attention": True},
            "0.16",
            "cp_latent_attention",
        ),
        ("p2p", PACKED, "0.14", None),
        ("a2a", PACKED, "0.15", "cp_packed_sequences"),
        ("a2a", PACKED, "0.16", None),
        ("a2a", {**PACKED, **SINKS}, "0.16", "cp_packed_sequences"),
        ("all_gather", PACKED, "0.16", "cp_packed_sequences"),
        (
            "a2a+p2p",
            {**PACKED, "transformer_engine_version": "2.18"},
            "0.19",
            "cp_packed_sequences",
        ),
        ("a2a+p2p", PACKED, "0.19", None),
    ],
)
def test_what_runs(kind, changes, version, rule, make_job) -> None:
    job = _job(make_job, kind, **changes)
    found = check(NONE, job, resolve_revision(Framework.MEGATRON_LM, version))
    assert [rejection.rule for rejection in found] == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cp_comm_type": CpCommType.A2A_P2P}, "write two numbers with the product 4"),
        ({"hierarchical_context_parallel_sizes": (3, 2)}, "e.g. 2,2"),
        ({"hierarchical_context_parallel_sizes": (2, 2, 1)}, "must be two numbers"),
    ],
)
def test_sizes_that_are_no_hierarchy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ParallelLayout(context_parallel_size=4, **fields)


def test_exchanged_heads_must_divide(make_job: Any) -> None:
    """Eight heads and two groups over TP 2: one group a rank."""
    with pytest.raises(UserError, match="a rank of TP 2 has 4 query and 1 key/value heads"):
        _job(make_job, "a2a", tensor_model_parallel_size=2, num_query_groups=2)


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (f"{CP4} --cp-comm-type a2a --num-attention-heads 6", "cp_exchanged_heads"),
        (
            f"{CP4} --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 4 2",
            "hierarchical_sizes",
        ),
        (f"{CP4} --cp-comm-type p2p a2a --num-layers 8", "cp_comm_type_per_layer"),
        ("model.context_parallel_size=2 model.window_size=[127,0] model.cp_comm_type=a2a", None),
        ("--cp-comm-type a2a --window-size 128,0 --num-attention-heads 6", None),
    ],
)
def test_lint(flags: str, rule: str | None) -> None:
    found = [finding.rule for finding in lint_target(flags).findings]
    assert [name for name in found if name.startswith(("cp_", "hier"))] == ([rule] if rule else [])


def test_flags_come_back_from_megatrons_parser(make_job: Any) -> None:
    args = parsed(layout_flags(_job(make_job, "a2a+p2p", create_attention_mask=False), V19))
    assert (args.cp_comm_type, args.hierarchical_context_parallel_sizes) == (["a2a+p2p"], [2, 2])
    assert not args.create_attention_mask_in_dataloader
    plain = parsed(layout_flags(_job(make_job, "p2p"), V19))
    assert (plain.cp_comm_type, plain.create_attention_mask_in_dataloader) == (["p2p"], True)


def test_overrides_of_bridge_and_nemo(make_job: Any) -> None:
    job = _job(make_job, "a2a+p2p")
    bridge = shlex.split(bridge_layout_overrides(job, V19))
    assert "model.cp_comm_type=a2a+p2p" in bridge
    assert "model.hierarchical_context_parallel_sizes=[2,2]" in bridge
    nemo = shlex.split(nemo_layout_overrides(job, resolve_revision(Framework.NEMO, "2")))
    assert "model.config.cp_comm_type=a2a+p2p" in nemo
