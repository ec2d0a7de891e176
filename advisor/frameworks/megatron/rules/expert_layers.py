"""Rules of TransformerConfig on mixture-of-experts models."""

from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.cuda_graphs import engine_of_parts
from advisor.frameworks.megatron.rules.stated import marked, names, stated


def _shared_overlap_dispatchers(raw: RawSettings, revision: Revision) -> str:
    """The dispatchers that could overlap the shared experts, where another one is set."""
    able = ("alltoall", "flex") if revision.at_least(0, 18) else ("alltoall",)
    wanted = raw.moe_shared_expert_overlap and raw.moe_shared_expert_intermediate_size is not None
    return " or ".join(able) if wanted and raw.moe_token_dispatcher_type not in able else ""


SHAPE_RULES: Final = stated(
    "expert_layers.shape", shared_expert_overlap_dispatcher=_shared_overlap_dispatchers
)
"""Megatron checks these before offloading and recompute."""


def _sharded_experts(raw: RawSettings, _: Revision) -> str:
    """The tensor parallelism of experts that have biases."""
    degree = raw.expert_tensor_parallel_size or raw.tensor_model_parallel_size
    return str(degree) if degree != 1 else ""


_PADDINGS: Final = ("moe_router_padding_for_fp8", "moe_router_padding_for_quantization")


def _router_padding(raw: RawSettings, revision: Revision) -> Match | None:
    newer = revision.at_least(0, 16)
    wanted = raw.moe_router_padding_for_fp8 or (newer and raw.moe_router_padding_for_quantization)
    if not wanted:
        return None
    if not raw.fp8 and not (newer and raw.fp4):
        return Match(
            "the router pads for quantization, but neither fp8 nor fp4 is set",
            " and ".join(marked(name) for name in _PADDINGS if getattr(raw, name)),
        )
    if raw.moe_token_dispatcher_type not in ("allgather", "alltoall_seq"):
        return None
    return Match(
        "router padding for quantization cannot be combined with moe_token_dispatcher_type = "
        f"{raw.moe_token_dispatcher_type}",
        "[moe_token_dispatcher_type=alltoall], or [moe_token_dispatcher_type=flex]",
    )


ROUTER_RULES: Final = stated(
    "expert_layers.router", expert_bias_under_etp=_sharded_experts, router_padding=_router_padding
)
"""Megatron checks these after them. A bias of the router goes with sqrtsoftplus, which is not
modelled, since 0.18."""


def _recompute_around_overlap(raw: RawSettings, _: Revision) -> dict[str, str] | None:
    if raw.full:
        return {"what": "full recompute", "way": "use selective recompute"}
    for name in ("recompute_method", "recompute_num_layers"):
        if getattr(raw, name) is not None:
            return {"what": f"{name} = {getattr(raw, name)}", "way": marked(name)}
    return None


def _overlap_mtp(raw: RawSettings, revision: Revision) -> Match | None:
    layers = raw.mtp_num_layers
    if not raw.overlap_moe_expert_parallel_comm or layers is None:
        return None
    newest = revision.at_least(0, 19)
    needs_pipeline = revision.at_least(0, 16) and not revision.at_least(0, 18)
    alone = needs_pipeline and raw.pipeline_model_parallel_size == 1
    if layers > 1 or (layers == 0 and not newest):
        return Match(
            f"mtp_num_layers = {layers} cannot be combined with overlap_moe_expert_parallel_comm",
            "[mtp_num_layers]" if alone else "[mtp_num_layers=1], or [mtp_num_layers]",
        )
    if layers == 0 or not alone:
        return None
    return Match(
        "an MTP layer with overlap_moe_expert_parallel_comm needs a pipeline",
        "[mtp_num_layers], or [>=0.18]",
    )


def _overlap_graphs(raw: RawSettings, revision: Revision) -> Match | None:
    graphs = graphs_of(raw, revision)
    captured = [module for module in ("mlp", "moe") if module in graphs.modules]
    te = graphs.impl == "transformer_engine"
    if (te and not captured) or (not te and revision.at_least(0, 18)):
        return None
    what = f"captures {names(captured)}" if captured else f"is {graphs.impl}"
    return Match(
        f"overlap_moe_expert_parallel_comm cannot be combined with a CUDA graph that {what}",
        engine_of_parts(raw, revision),
    )


OVERLAP_RULES: Final = stated(
    "expert_layers.overlap",
    expert_overlap_full_recompute=_recompute_around_overlap,
    expert_overlap_mtp=_overlap_mtp,
    expert_overlap_graphs=_overlap_graphs,
)
"""Overlap of the communication of experts with computation."""
