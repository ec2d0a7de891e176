"""Rules of TransformerConfig on CUDA graphs, alone and with offloaded layers."""

from typing import Final

from advisor.base.units import nearest_names
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict, names


def cuda_graph_flags(raw: RawSettings, revision: Revision) -> Problem | None:
    """enable_cuda_graph, external_cuda_graph and cuda_graph_impl exclude each other."""
    if not revision.cuda_graph_impls or not (raw.enable_cuda_graph or raw.external_cuda_graph):
        return None
    if raw.cuda_graph_impl != "none":
        return Problem(
            "enable_cuda_graph or external_cuda_graph with cuda_graph_impl = "
            f"{raw.cuda_graph_impl}",
            "drop the old spelling",
            "AssertionError: Do not use enable_cuda_graph or external_cuda_graph with cuda_graph",
        )
    if not (raw.enable_cuda_graph and raw.external_cuda_graph):
        return None
    return Problem(
        "enable_cuda_graph and external_cuda_graph are both on",
        "use cuda_graph_impl local or transformer_engine",
        "AssertionError: enable_cuda_graph and external_cuda_graph cannot be enabled at the same",
    )


def cuda_graph_modules(raw: RawSettings, revision: Revision) -> Problem | None:
    """The captured modules must be known to the release; checked from 0.16 on."""
    if not revision.at_least(0, 16):
        return None
    wanted = () if raw.cuda_graph_modules == ("full",) else raw.cuda_graph_modules
    unknown = [module for module in wanted if module not in revision.cuda_graph_modules]
    if not unknown:
        return None
    field = revision.cuda_graph_field
    if "full" in unknown:
        return Problem(
            f"{field} has full beside {names([m for m in wanted if m != 'full'])}",
            f"leave {field} empty to capture the whole layer",
            "AssertionError: full scope cannot be used with other scopes.",
        )
    return Problem(
        f"{field} {names(unknown)}: not accepted by {revision.label}",
        nearest_names(unknown[0], revision.cuda_graph_modules),
        f"KeyError: '{unknown[0]}'",
    )


def cuda_graph_impl(raw: RawSettings, revision: Revision) -> Problem | None:
    """cuda_graph_impl must be known to the release."""
    impl = raw.cuda_graph_impl
    if impl == "none" or not revision.cuda_graph_impls or impl in revision.cuda_graph_impls:
        return None
    old_spelling = "cuda_graph_impl local with cuda_graph_scope full_iteration"
    return Problem(
        f"cuda_graph_impl = {impl}: not accepted by {revision.label}",
        old_spelling
        if impl == "full_iteration"
        else nearest_names(impl, revision.cuda_graph_impls),
        f"AssertionError: Invalid cuda graph implementation: {impl}",
    )


def cuda_graph_full_iteration(raw: RawSettings, revision: Revision) -> Problem | None:
    """A graph of the whole iteration captures no single modules and needs its own impl."""
    graphs = graphs_of(raw, revision)
    if not revision.at_least(0, 16):
        return None
    if graphs.impl == "full_iteration" and graphs.modules and revision.at_least(0, 18):
        return Problem(
            f"cuda_graph_impl = full_iteration with cuda_graph_modules {names(graphs.modules)}",
            "drop cuda_graph_modules",
            "AssertionError: cuda_graph_modules must be empty when cuda_graph_impl=",
        )
    if graphs.impl != "transformer_engine" or "full_iteration" not in graphs.modules:
        return None
    new = "AssertionError: cuda_graph_modules='full_iteration' cannot be combined with"
    old = "AssertionError: To use full iteration cuda graph, please use cuda_graph_impl=local"
    return Problem(
        "cuda_graph_impl = transformer_engine with scope full_iteration",
        "use cuda_graph_impl full_iteration (local before 0.18)",
        new if revision.at_least(0, 18) else old,
    )


def cuda_graph_cpu_offloading(raw: RawSettings, revision: Revision) -> Problem | None:
    """CUDA graphs exclude cpu_offloading; from 0.18 on not those of the whole iteration."""
    graphs = graphs_of(raw, revision)
    if not raw.cpu_offloading or not graphs.on:
        return None
    if revision.at_least(0, 18) and graphs.impl == "full_iteration":
        return None
    if not revision.cuda_graph_impls and not raw.enable_cuda_graph:
        return None
    return Problem(
        f"cuda_graph_impl = {graphs.impl} with cpu_offloading",
        "drop one of the two",
        "ValueError: CUDA graphs not supported with CPU offloading.",
    )


RULES: Final = tuple(
    Rule(check.__name__, Verdict.REFUSED, Authority.CONFIG, check)
    for check in (
        cuda_graph_flags,
        cuda_graph_modules,
        cuda_graph_impl,
        cuda_graph_full_iteration,
        cuda_graph_cpu_offloading,
    )
)
"""In the order in which Megatron checks them."""
