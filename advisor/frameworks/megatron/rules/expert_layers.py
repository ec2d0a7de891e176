"""Rules of TransformerConfig on mixture-of-experts models."""

from functools import partial
from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.cuda_graphs import capturable
from advisor.frameworks.megatron.rules.stated import Rule, clash, config, marked, names


def _shared_overlap_dispatchers(raw: RawSettings, revision: Revision) -> str:
    """The dispatchers that could overlap the shared experts, where another one is set."""
    able = ("alltoall", "flex") if revision.at_least(0, 18) else ("alltoall",)
    wanted = raw.moe_shared_expert_overlap and raw.moe_shared_expert_intermediate_size is not None
    return " or ".join(able) if wanted and raw.moe_token_dispatcher_type not in able else ""


SHAPE_RULES: Final[dict[str, Rule]] = {
    "expert_parallel_needs_experts": Rule(
        summary="expert_model_parallel_size > 1 needs num_moe_experts.",
        when=lambda raw, _: raw.expert_model_parallel_size != 1 and raw.num_moe_experts is None,
        reason="expert_model_parallel_size = {raw.expert_model_parallel_size} needs a MoE model",
        fix="[expert_model_parallel_size]",
        source=config(704, 739, 808, 1048, 1180, 1326, 1468),
        example="expert_model_parallel_size=2",
    ),
    "experts_are_positive": Rule(
        summary="num_moe_experts must be at least 1.",
        when=lambda raw, _: raw.num_moe_experts is not None and raw.num_moe_experts <= 0,
        reason="num_moe_experts = {raw.num_moe_experts} must be at least 1",
        fix="[num_moe_experts]",
        source=config(707, 742, 811, 1051, 1231, 1389, 1531),
        example="num_moe_experts=0",
    ),
    "expert_size_needs_experts": Rule(
        summary="moe_ffn_hidden_size needs num_moe_experts (up to 0.17).",
        when=lambda raw, _: raw.moe_ffn_hidden_size is not None and raw.num_moe_experts is None,
        reason="moe_ffn_hidden_size = {raw.moe_ffn_hidden_size} needs num_moe_experts",
        fix="[moe_ffn_hidden_size]",
        source=config(716, 751, 820, 1060, 1240, 0, 0),
        example="moe_ffn_hidden_size=64",
    ),
    "flex_dispatcher_padding": Rule(
        given=lambda raw, revision: (
            raw.moe_flex_dispatcher_backend == "deepep" or not revision.at_least(0, 16)
        ),
        when=lambda raw, _: (
            raw.moe_token_dispatcher_type == "flex" and raw.moe_pad_expert_input_to_capacity
        ),
        reason="moe_token_dispatcher_type = flex on DeepEP cannot be combined with "
        "moe_pad_expert_input_to_capacity",
        fix="[moe_token_dispatcher_type=alltoall], or [moe_pad_expert_input_to_capacity]",
        source=config(725, 760, 829, 1078, 1258, 1455, 1604),
        example="moe_token_dispatcher_type=flex moe_pad_expert_input_to_capacity=true",
    ),
    "shared_expert_size": Rule(
        summary="moe_shared_expert_intermediate_size must be positive.",
        when=lambda raw, _: (
            raw.moe_shared_expert_intermediate_size is not None
            and raw.moe_shared_expert_intermediate_size <= 0
        ),
        reason="moe_shared_expert_intermediate_size = {raw.moe_shared_expert_intermediate_size} "
        "must be positive",
        fix="[moe_shared_expert_intermediate_size], or give the number of shared experts times "
        "the ffn size of one",
        source=config(731, 766, 835, 1085, 1265, 1462, 1639),
        example="moe_shared_expert_intermediate_size=0",
    ),
    "shared_expert_overlap_dispatcher": Rule(
        summary="moe_shared_expert_overlap needs the alltoall dispatcher, or since 0.18 flex.",
        when=_shared_overlap_dispatchers,
        reason="moe_shared_expert_overlap cannot be combined with moe_token_dispatcher_type = "
        "{raw.moe_token_dispatcher_type}",
        fix="[moe_token_dispatcher_type=alltoall], or [moe_shared_expert_overlap]",
        source=config(739, 774, 843, 1093, 1273, 1471, 1648),
        example="moe_shared_expert_overlap=true moe_shared_expert_intermediate_size=64",
    ),
    "capacity_needs_auxiliary_loss": Rule(
        summary="moe_expert_capacity_factor needs an auxiliary loss or no load balancing.",
        when=lambda raw, _: (
            raw.moe_expert_capacity_factor is not None
            and raw.moe_router_load_balancing_type
            not in ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")
        ),
        reason="moe_expert_capacity_factor cannot be combined with "
        "moe_router_load_balancing_type = {raw.moe_router_load_balancing_type}",
        fix="[moe_router_load_balancing_type=aux_loss], or [moe_expert_capacity_factor]",
        source=config(747, 792, 866, 1116, 1296, 1494, 1671),
        example="moe_expert_capacity_factor=1.0 moe_router_load_balancing_type=sinkhorn",
    ),
    "padding_needs_capacity": Rule(
        when=lambda raw, _: (
            raw.moe_pad_expert_input_to_capacity
            and (raw.moe_expert_capacity_factor is None or raw.moe_expert_capacity_factor < 0)
        ),
        reason="moe_pad_expert_input_to_capacity needs moe_expert_capacity_factor",
        fix="[moe_pad_expert_input_to_capacity], or set moe_expert_capacity_factor",
        source=config(753, 804, 883, 1133, 1313, 1511, 1688),
        example="moe_pad_expert_input_to_capacity=true",
    ),
}
"""Megatron checks these before offloading and recompute."""


def _sharded_experts(raw: RawSettings, _: Revision) -> str:
    """The tensor parallelism of experts that have biases."""
    degree = raw.expert_tensor_parallel_size or raw.tensor_model_parallel_size
    biased = raw.num_moe_experts is not None and raw.add_bias_linear is True
    return str(degree) if biased and degree != 1 else ""


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


ROUTER_RULES: Final[dict[str, Rule]] = {
    "expert_bias_under_etp": Rule(
        summary="Biases in experts need expert_tensor_parallel_size 1 (since 0.15).",
        when=_sharded_experts,
        reason="add_bias_linear in a MoE model needs expert_tensor_parallel_size = 1, not {found}",
        fix="[add_bias_linear=false], or [expert_tensor_parallel_size=1]",
        source=config(0, 0, 1303, 1590, 1832, 2057, 2281),
        example="add_bias_linear=true tensor_model_parallel_size=2 num_moe_experts=8",
    ),
    "router_bias_needs_sigmoid": clash(
        "moe_router_enable_expert_bias",
        "moe_router_score_function!=sigmoid",
        "[moe_router_score_function=sigmoid], or [moe_router_enable_expert_bias]",
        # since 0.18 it takes sqrtsoftplus, which is not modelled
        given=lambda raw, revision: (
            raw.moe_router_score_function != "sqrtsoftplus" or not revision.at_least(0, 18)
        ),
        source=config(1104, 1201, 1307, 1594, 1836, 2064, 2288),
    ),
    "router_padding": Rule(
        summary="Padding of the router's output needs fp8 or fp4, and the alltoall or flex "
        "dispatcher.",
        when=_router_padding,
        source=config(1124, 1221, 1327, 1623, 1865, 2094, 2318),
        example="moe_router_padding_for_fp8=true",
    ),
    "single_expert_softmax": Rule(
        summary="With one expert per token the softmax must come before the top-k choice.",
        when=lambda raw, _: (
            raw.moe_router_topk == 1
            and raw.moe_router_score_function == "softmax"
            and not raw.moe_router_pre_softmax
            and raw.moe_router_load_balancing_type != "sinkhorn"
        ),
        reason="moe_router_topk = 1 needs moe_router_pre_softmax",
        fix="[moe_router_pre_softmax=true]",
        source=config(1140, 1237, 1343, 1640, 1882, 2111, 2335),
        example="moe_router_topk=1",
    ),
}
"""Megatron checks these after them."""


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
    if not raw.overlap_moe_expert_parallel_comm or not graphs.on or not revision.at_least(0, 16):
        return None
    captured = [module for module in ("mlp", "moe") if module in graphs.modules]
    te = graphs.impl == "transformer_engine"
    if (te and not captured) or (not te and revision.at_least(0, 18)):
        return None
    what = f"captures {names(captured)}" if captured else f"is {graphs.impl}"
    capture = marked("cuda_graph_modules", *capturable(raw, "transformer_engine"))
    return Match(
        f"overlap_moe_expert_parallel_comm cannot be combined with a CUDA graph that {what}",
        f"[cuda_graph_impl=transformer_engine] and {capture}",
    )


_overlap = partial(Rule, given=lambda raw, _: raw.overlap_moe_expert_parallel_comm)
OVERLAP_RULES: Final[dict[str, Rule]] = {
    "expert_overlap_needs_chunks": _overlap(
        summary="EP A2A overlap (overlap_moe_expert_parallel_comm) with a pipeline needs a virtual "
        "pipeline.",
        when=lambda raw, _: (
            raw.pipeline_model_parallel_size != 1
            and raw.virtual_pipeline_model_parallel_size is None
        ),
        reason="overlap_moe_expert_parallel_comm cannot be combined with "
        "pipeline_model_parallel_size = {raw.pipeline_model_parallel_size} and no "
        "virtual_pipeline_model_parallel_size",
        fix="set virtual_pipeline_model_parallel_size, or [overlap_moe_expert_parallel_comm]",
        source=config(0, 1304, 1447, 1858, 2100, 2405, 2675),
        example="overlap_moe_expert_parallel_comm=true pipeline_model_parallel_size=2",
    ),
    "expert_overlap_needs_experts": clash(
        "overlap_moe_expert_parallel_comm",
        "expert_model_parallel_size<=1",
        "[overlap_moe_expert_parallel_comm]",
        source=config(0, 1310, 1453, 1864, 2106, 2411, 2681),
    ),
    "expert_overlap_dispatcher": clash(
        "overlap_moe_expert_parallel_comm",
        "moe_token_dispatcher_type!=alltoall|flex",
        "[moe_token_dispatcher_type=alltoall], or [moe_token_dispatcher_type=flex]",
        source=config(0, 1314, 1457, 1868, 2110, 2415, 2685),
    ),
    "expert_overlap_full_recompute": _overlap(
        summary="EP A2A overlap refuses full recompute, recompute_method and recompute_num_layers.",
        when=_recompute_around_overlap,
        reason="{what} cannot be combined with overlap_moe_expert_parallel_comm",
        fix="{way}, or [overlap_moe_expert_parallel_comm]",
        source=config(0, 1318, 1461, 1872, 2114, 2419, 2689),
        example="overlap_moe_expert_parallel_comm=true recompute_num_layers=1",
    ),
    "expert_overlap_moe_recompute": _overlap(
        # Megatron looks at the list whatever the granularity.
        when=lambda raw, _: "moe" in raw.effective_modules or raw.moe_layer_recompute,
        reason="recompute of moe cannot be combined with overlap_moe_expert_parallel_comm",
        fix="recompute moe_act instead, or [overlap_moe_expert_parallel_comm]",
        source=config(0, 0, 0, 0, 2123, 2428, 2698),
        example="overlap_moe_expert_parallel_comm=true recompute_modules=moe",
    ),
    "expert_overlap_shared_experts": clash(
        "moe_shared_expert_overlap",
        "overlap_moe_expert_parallel_comm",
        "[moe_shared_expert_overlap]",
        source=config(0, 1333, 1476, 1887, 2132, 2437, 2707),
        example="overlap_moe_expert_parallel_comm=true moe_shared_expert_overlap=true",
    ),
    "expert_overlap_mtp": Rule(
        summary="EP A2A overlap allows one MTP layer, in 0.16 and 0.17 only with a pipeline.",
        when=_overlap_mtp,
        source=config(0, 1336, 1479, 1890, 2135, 2440, 2712),
        example="overlap_moe_expert_parallel_comm=true mtp_num_layers=2",
    ),
    "expert_overlap_graphs": Rule(
        summary="EP A2A overlap refuses CUDA graphs of mlp and moe; up to 0.17, all graphs except "
        "TE's.",
        when=_overlap_graphs,
        source=config(0, 0, 0, 1903, 2148, 2448, 2743),
        example="num_moe_experts=8 overlap_moe_expert_parallel_comm=true "
        "cuda_graph_impl=transformer_engine cuda_graph_modules=moe",
    ),
    "delayed_wgrad_needs_overlap": Rule(
        when=lambda raw, _: raw.delay_wgrad_compute and not raw.overlap_moe_expert_parallel_comm,
        reason="delay_wgrad_compute needs overlap_moe_expert_parallel_comm",
        fix="[delay_wgrad_compute]",
        source=config(0, 1342, 1485, 1911, 2156, 2456, 2751),
        example="delay_wgrad_compute=true",
    ),
}
"""Overlap of the communication of experts with computation."""
