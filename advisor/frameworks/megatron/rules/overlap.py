"""Rules of TransformerConfig on overlapping the communication of experts with computation."""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict, names

_OVERLAP: Final = "overlap_moe_expert_parallel_comm"
_DISPATCHERS: Final = ("alltoall", "flex")


def expert_overlap_needs_chunks(raw: RawSettings, revision: Revision) -> Problem | None:
    """The overlap needs a virtual pipeline where there is a pipeline."""
    plain = raw.virtual_pipeline_model_parallel_size is None
    if not _overlaps(raw, revision) or raw.pipeline_model_parallel_size == 1 or not plain:
        return None
    return Problem(
        f"{_OVERLAP} with pipeline_model_parallel_size = {raw.pipeline_model_parallel_size} and no "
        "virtual_pipeline_model_parallel_size",
        f"set virtual_pipeline_model_parallel_size, or drop {_OVERLAP}",
        "AssertionError: If enabling EP A2A overlap, virtual_pipeline_model_parallel_size must",
    )


def expert_overlap_needs_experts(raw: RawSettings, revision: Revision) -> Problem | None:
    """The overlap needs expert parallelism."""
    if not _overlaps(raw, revision) or raw.expert_model_parallel_size > 1:
        return None
    return Problem(
        f"{_OVERLAP} with expert_model_parallel_size = {raw.expert_model_parallel_size}",
        f"drop {_OVERLAP}",
        f"AssertionError: {_OVERLAP} is only supported with expert model parallelism",
    )


def expert_overlap_dispatcher(raw: RawSettings, revision: Revision) -> Problem | None:
    """The overlap needs the alltoall or the flex dispatcher."""
    if not _overlaps(raw, revision) or raw.moe_token_dispatcher_type in _DISPATCHERS:
        return None
    return Problem(
        f"{_OVERLAP} with moe_token_dispatcher_type = {raw.moe_token_dispatcher_type}",
        "use moe_token_dispatcher_type alltoall or flex",
        f"AssertionError: {_OVERLAP} is supported with alltoall/flex token dispatcher",
    )


def expert_overlap_full_recompute(raw: RawSettings, revision: Revision) -> Problem | None:
    """The overlap excludes full recompute, and its method and number of layers."""
    if not _overlaps(raw, revision):
        return None
    fix = f"use selective recompute, or drop {_OVERLAP}"
    if raw.full:
        return Problem(
            f"full recompute with {_OVERLAP}",
            fix,
            f"AssertionError: disable full recomputation when enabling {_OVERLAP}",
        )
    if raw.recompute_method is not None:
        return Problem(
            f"recompute_method = {raw.recompute_method} with {_OVERLAP}",
            fix,
            f"AssertionError: disable recomputation method when enabling {_OVERLAP}",
        )
    if raw.recompute_num_layers is None:
        return None
    return Problem(
        f"recompute_num_layers = {raw.recompute_num_layers} with {_OVERLAP}",
        fix,
        f"AssertionError: recompute_num_layers must be None when enabling {_OVERLAP}",
    )


def expert_overlap_moe_recompute(raw: RawSettings, revision: Revision) -> Problem | None:
    """The overlap excludes moe in recompute_modules (from 0.17 on)."""
    if not _overlaps(raw, revision) or not revision.at_least(0, 17):
        return None
    # Megatron looks at the list whatever the granularity.
    if "moe" not in raw.effective_modules and not raw.moe_layer_recompute:
        return None
    return Problem(
        f"recompute_modules has moe with {_OVERLAP}",
        f"recompute moe_act instead, or drop {_OVERLAP}",
        f"AssertionError: disable moe in recompute_modules when enabling {_OVERLAP}",
    )


def expert_overlap_shared_experts(raw: RawSettings, revision: Revision) -> Problem | None:
    """The overlap excludes moe_shared_expert_overlap."""
    if not _overlaps(raw, revision) or not raw.moe_shared_expert_overlap:
        return None
    return Problem(
        f"moe_shared_expert_overlap with {_OVERLAP}",
        "drop moe_shared_expert_overlap",
        f"AssertionError: disable moe_shared_expert_overlap when enabling {_OVERLAP}",
    )


def expert_overlap_mtp(raw: RawSettings, revision: Revision) -> Problem | None:
    """The overlap allows one MTP layer, in 0.16 and 0.17 on a pipeline only."""
    layers = raw.mtp_num_layers
    if not _overlaps(raw, revision) or layers is None:
        return None
    newest = revision.at_least(0, 19)
    if layers > 1 or (layers == 0 and not newest):
        old = "MTP layernum only supports 1 when enabling"
        new = "MTP supports at most one layer when enabling"
        return Problem(
            f"mtp_num_layers = {layers} with {_OVERLAP}",
            "use one MTP layer, or leave it unset",
            f"AssertionError: {new if newest else old} {_OVERLAP}.",
        )
    needs_pipeline = revision.at_least(0, 16) and not revision.at_least(0, 18)
    if layers == 0 or not needs_pipeline or raw.pipeline_model_parallel_size > 1:
        return None
    return Problem(
        f"an MTP layer with {_OVERLAP} and no pipeline",
        "use pipeline_model_parallel_size 2 or more, or megatron-core 0.18",
        "AssertionError: Pipeline model parallel size must be larger than 1 when enabling",
    )


def expert_overlap_graphs(raw: RawSettings, revision: Revision) -> Problem | None:
    """The overlap excludes graphs of mlp and moe; up to 0.17 any but Transformer Engine's."""
    graphs = graphs_of(raw, revision)
    if not _overlaps(raw, revision) or not graphs.on or not revision.at_least(0, 16):
        return None
    captured = [module for module in ("mlp", "moe") if module in graphs.modules]
    te = graphs.impl == "transformer_engine"
    if (te and not captured) or (not te and revision.at_least(0, 18)):
        return None
    what = f"captures {names(captured)}" if captured else f"is {graphs.impl}"
    return Problem(
        f"{_OVERLAP} with a CUDA graph that {what}",
        "use cuda_graph_impl transformer_engine without mlp and moe",
        "AssertionError: CUDA graph scope on moe and mlp is not supported with",
    )


def delayed_wgrad_needs_overlap(raw: RawSettings, revision: Revision) -> Problem | None:
    """delay_wgrad_compute needs overlap_moe_expert_parallel_comm (from 0.14 on)."""
    overlaps = raw.overlap_moe_expert_parallel_comm
    if not raw.delay_wgrad_compute or overlaps or not revision.at_least(0, 14):
        return None
    return Problem(
        f"delay_wgrad_compute without {_OVERLAP}",
        "drop delay_wgrad_compute",
        f"AssertionError: {_OVERLAP} must be enabled when enabling delay_wgrad_compute",
    )


def _overlaps(raw: RawSettings, revision: Revision) -> bool:
    return raw.overlap_moe_expert_parallel_comm and revision.at_least(0, 14)


RULES: Final = tuple(
    Rule(check.__name__, Verdict.REFUSED, Authority.CONFIG, check)
    for check in (
        expert_overlap_needs_chunks,
        expert_overlap_needs_experts,
        expert_overlap_dispatcher,
        expert_overlap_full_recompute,
        expert_overlap_moe_recompute,
        expert_overlap_shared_experts,
        expert_overlap_mtp,
        expert_overlap_graphs,
        delayed_wgrad_needs_overlap,
    )
)
"""In the order in which Megatron checks them."""
