"""Rules of TransformerConfig on recompute or offloading under CUDA graphs."""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict, names

_LOCAL_OFFLOAD: Final = ("expert_fc1", "moe_act", "fused_group_mlp")


def cuda_graph_any_recompute(raw: RawSettings, revision: Revision) -> Problem | None:
    """Up to 0.15 CUDA graphs exclude recompute, but for TE graphs of attn with selective (0.15)."""
    recomputes = raw.recompute_granularity is not None or raw.moe_layer_recompute
    if revision.at_least(0, 16) or not recomputes:
        return None
    graphs = graphs_of(raw, revision)
    if revision.at_least(0, 15):
        attn_only = graphs.impl == "transformer_engine" and graphs.modules == ("attn",)
        applies = graphs.on and not (attn_only and not raw.full)
    else:
        applies = raw.enable_cuda_graph
    if not applies:
        return None
    return Problem(
        f"CUDA graphs ({graphs.impl}) with recompute_granularity = {raw.recompute_granularity}",
        "drop one of the two, or use megatron-core 0.16 or newer",
        "ValueError: CUDA graphs not supported with activation recomputation.",
    )


def cuda_graph_attn_recompute(raw: RawSettings, revision: Revision) -> Problem | None:
    """In 0.15 a TE graph of attn excludes recompute inside attention."""
    graphs = graphs_of(raw, revision)
    if revision.number != (0, 15) or graphs.modules != ("attn",):
        return None
    inside = [m for m in raw.recomputed_modules if m in ("core_attn", "mla_up_proj")]
    if graphs.impl != "transformer_engine" or not inside:
        return None
    return Problem(
        f"the graph captures attn, and {inside[0]} is recomputed inside it",
        f"drop {inside[0]}, or use megatron-core 0.16 or newer",
        f"ValueError: attn cuda graph is not supported with {inside[0]} recompute.",
    )


def cuda_graph_full_recompute(raw: RawSettings, revision: Revision) -> Problem | None:
    """Full recompute goes with a graph of the whole iteration only."""
    graphs = graphs_of(raw, revision)
    unchecked = not revision.at_least(0, 16) or raw.recompute_granularity is None or raw.selective
    if unchecked or not graphs.on or graphs.iteration:
        return None
    return Problem(
        f"full recompute with cuda_graph_impl = {graphs.impl}",
        "use selective recompute, or a graph of the full iteration",
        "AssertionError: full recompute is only supported with full iteration CUDA graph.",
    )


def cuda_graph_router_recompute(raw: RawSettings, revision: Revision) -> Problem | None:
    """A TE graph of moe_router excludes recompute of moe."""
    graphs = graphs_of(raw, revision)
    applies = graphs.impl == "transformer_engine" and "moe_router" in graphs.modules
    if not applies or not _replays(raw, revision, "moe"):
        return None
    return Problem(
        "the graph captures moe_router, and moe is recomputed around it",
        "drop one of the two",
        "AssertionError: moe recompute is not supported with moe_router CUDA graph with:",
    )


def cuda_graph_attention_dropout(raw: RawSettings, revision: Revision) -> Problem | None:
    """core_attn recomputed inside a graph excludes attention dropout."""
    captured = graphs_of(raw, revision).captures("attn")
    if not raw.attention_dropout or not captured or not _replays(raw, revision, "core_attn"):
        return None
    return Problem(
        f"core_attn is recomputed inside a CUDA graph and attention_dropout = "
        f"{raw.attention_dropout:g}",
        "set attention_dropout 0, or drop core_attn",
        "AssertionError: attention dropout is not supported with graphed attention recomputation.",
    )


def cuda_graph_hidden_dropout(raw: RawSettings, revision: Revision) -> Problem | None:
    """mlp or moe recomputed inside a graph excludes hidden dropout."""
    graphs = graphs_of(raw, revision)
    inside = [m for m in ("mlp", "moe") if graphs.captures(m) and _replays(raw, revision, m)]
    if not raw.hidden_dropout or not inside:
        return None
    return Problem(
        f"{names(inside)} is recomputed inside a CUDA graph and hidden_dropout = "
        f"{raw.hidden_dropout:g}",
        f"set hidden_dropout 0, or drop {names(inside)}",
        "AssertionError: hidden dropout is not supported with graphed MLP/MoE recomputation.",
    )


def cuda_graph_router_jitter(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe recomputed inside a graph excludes moe_input_jitter_eps."""
    captured = graphs_of(raw, revision).captures("moe")
    if raw.moe_input_jitter_eps is None or not captured or not _replays(raw, revision, "moe"):
        return None
    return Problem(
        f"moe is recomputed inside a CUDA graph and moe_input_jitter_eps = "
        f"{raw.moe_input_jitter_eps:g}",
        "drop moe_input_jitter_eps, or moe",
        "AssertionError: moe_input_jitter_eps is not supported with graphed moe recomputation.",
    )


def cuda_graph_offload(raw: RawSettings, revision: Revision) -> Problem | None:
    """Module offload goes with TE or full-iteration graphs; checked from 0.18 on."""
    graphs = graphs_of(raw, revision)
    offloads = raw.fine_grained_activation_offloading and raw.offload_modules
    if not offloads or not graphs.on or not revision.at_least(0, 18):
        return None
    if graphs.impl == "local":
        return _local_graph_offload(raw, revision, graphs.modules)
    if graphs.impl == "full_iteration" and not _bounded(raw):
        return Problem(
            "offload_modules with a full-iteration graph and no "
            "fine_grained_offloading_max_inflight_offloads",
            "set fine_grained_offloading_max_inflight_offloads to 0 or more",
            "AssertionError: fine_grained_offloading_max_inflight_offloads must be a non-negative",
        )
    if "moe" in graphs.modules:
        return Problem(
            "offload_modules with a graph that captures moe",
            "drop one of the two",
            "AssertionError: Token-drop MoE is temporarily not supported with activation",
        )
    if raw.cuda_graph_warmup_steps > 0:
        return None
    return Problem(
        "offload_modules with cuda_graph_warmup_steps = 0",
        "set cuda_graph_warmup_steps 3",
        "AssertionError: cuda_graph_warmup_steps must be greater than 0 when enabling",
    )


def _bounded(raw: RawSettings) -> bool:
    most = raw.fine_grained_offloading_max_inflight_offloads
    return most is not None and most >= 0


def _local_graph_offload(
    raw: RawSettings, revision: Revision, captured: tuple[str, ...]
) -> Problem | None:
    outside = [m for m in raw.offload_modules if m not in _LOCAL_OFFLOAD]
    fix = "use cuda_graph_impl transformer_engine, or drop the offload"
    if not revision.at_least(0, 19):
        return Problem(
            "offload_modules with cuda_graph_impl = local",
            fix,
            "AssertionError: fine-grained activation offloading is only supported with",
        )
    if outside:
        return Problem(
            f"offload of {names(outside)} with cuda_graph_impl = local",
            fix,
            "AssertionError: fine-grained activation offloading with cuda_graph_impl='local' only "
            "supports offload_modules",
        )
    if captured:
        return None
    return Problem(
        "offload_modules with cuda_graph_impl = local that captures whole layers",
        fix,
        "AssertionError: fine-grained activation offloading with cuda_graph_impl='local' is not",
    )


def _replays(raw: RawSettings, revision: Revision, module: str) -> bool:
    """Whether selective recompute covers `module`; older releases refuse graphs before this."""
    return revision.at_least(0, 16) and module in raw.recomputed_modules


RULES: Final = tuple(
    Rule(check.__name__, Verdict.REFUSED, Authority.CONFIG, check)
    for check in (
        cuda_graph_any_recompute,
        cuda_graph_attn_recompute,
        cuda_graph_full_recompute,
        cuda_graph_router_recompute,
        cuda_graph_attention_dropout,
        cuda_graph_hidden_dropout,
        cuda_graph_router_jitter,
        cuda_graph_offload,
    )
)
"""In the order in which Megatron checks them."""
