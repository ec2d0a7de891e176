"""Rules of TransformerConfig on capturing mixture-of-experts layers in CUDA graphs."""

from collections.abc import Set
from typing import Final

from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict, names


def cuda_graph_router_modules(raw: RawSettings, revision: Revision) -> Problem | None:
    """A graph captures moe or moe_router, not both, and moe_preprocess with moe_router only."""
    modules = _captured(raw, revision)
    if {"moe", "moe_router"} <= modules:
        return Problem(
            "the graph captures both moe and moe_router",
            "drop one of the two",
            f"AssertionError: {revision.cuda_graph_field} must not contain both moe and moe_router",
        )
    if "moe_preprocess" not in modules or "moe_router" in modules:
        return None
    return Problem(
        "the graph captures moe_preprocess without moe_router",
        "add moe_router",
        "AssertionError: moe_preprocess cuda graph is only supported with moe_router",
    )


def cuda_graph_experts_of_dense(raw: RawSettings, revision: Revision) -> Problem | None:
    """A graph captures moe and moe_router in a MoE model only."""
    wanted = _captured(raw, revision) & {"moe", "moe_router"}
    if raw.has_experts or not wanted:
        return None
    return Problem(
        f"the graph captures {names(sorted(wanted))} of a dense model",
        "capture attn and mlp, or leave the list empty for the whole layer",
        "AssertionError: moe cuda graph is only supported for MoE.",
    )


def cuda_graph_mlp_of_experts(raw: RawSettings, revision: Revision) -> Problem | None:
    """A graph captures mlp only where some layer is dense."""
    if raw.has_dense_mlp or "mlp" not in _captured(raw, revision):
        return None
    return Problem(
        "the graph captures mlp, and every layer is a mixture of experts",
        "capture moe_router and moe_preprocess instead",
        "AssertionError: mlp cuda graph is only supported for dense layers, but not found in the",
    )


def cuda_graph_dropless(raw: RawSettings, revision: Revision) -> Problem | None:
    """A graph captures moe only with drop-and-pad; moe_preprocess needs a fixed shape as well."""
    modules = _captured(raw, revision)
    factor = raw.moe_expert_capacity_factor
    capacity = factor is not None and factor >= 0
    if not raw.has_experts or (capacity and raw.moe_pad_expert_input_to_capacity):
        return None
    if "moe" in modules:
        return Problem(
            "the graph captures moe, whose shapes vary without drop-and-pad",
            "capture moe_router, or set moe_expert_capacity_factor and "
            "moe_pad_expert_input_to_capacity",
            "AssertionError: moe cuda graph is only supported with drop-padding MoE.",
        )
    copies = raw.moe_token_dispatcher_type == "alltoall" and (
        capacity or raw.moe_router_padding_for_fp8
    )
    if "moe_preprocess" not in modules or not copies:
        return None
    return Problem(
        "the graph captures moe_preprocess, which copies to the host with a capacity factor or "
        "moe_router_padding_for_fp8",
        "drop moe_preprocess",
        "AssertionError: moe_preprocess cuda graph is not supported when there are DtoH copies",
    )


def _captured(raw: RawSettings, revision: Revision) -> Set[str]:
    """Modules that single graphs capture; the local implementation takes router and preprocess
    together. Releases before 0.16 check none of this."""
    graphs = graphs_of(raw, revision)
    if not graphs.on or graphs.impl == "full_iteration" or not revision.at_least(0, 16):
        return frozenset()
    router = {"moe_router", "moe_preprocess"}
    modules = frozenset(graphs.modules)
    return modules | router if graphs.impl == "local" and modules & router else modules


RULES: Final = tuple(
    Rule(check.__name__, Verdict.REFUSED, Authority.CONFIG, check)
    for check in (
        cuda_graph_router_modules,
        cuda_graph_experts_of_dense,
        cuda_graph_mlp_of_experts,
        cuda_graph_dropless,
    )
)
"""In the order in which Megatron checks them."""
