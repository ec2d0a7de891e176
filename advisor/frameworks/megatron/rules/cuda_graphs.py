"""Rules of TransformerConfig on CUDA graphs, alone, around experts, and with recompute or offload.

Releases before 0.16 do not look at the modules that a graph captures.
"""

from collections.abc import Sequence, Set
from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.raw import Graphs, RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.stated import (
    INSIDE_MOE,
    marked,
    names,
    replayed,
    stated,
    unknown,
)
from advisor.frameworks.names import Framework

_OLD_SPELLINGS: Final = ("enable_cuda_graph", "external_cuda_graph")


def _flags(raw: RawSettings, _: Revision) -> Match | None:
    if (raw.enable_cuda_graph or raw.external_cuda_graph) and raw.cuda_graph_impl != "none":
        return Match(
            "enable_cuda_graph or external_cuda_graph cannot be combined with cuda_graph_impl = "
            f"{raw.cuda_graph_impl}",
            " and ".join(marked(name) for name in _OLD_SPELLINGS if getattr(raw, name)),
        )
    if raw.enable_cuda_graph and raw.external_cuda_graph:
        return Match(
            "enable_cuda_graph cannot be combined with external_cuda_graph",
            "[enable_cuda_graph], or [external_cuda_graph]",
        )
    return None


def _capture(modules: Sequence[str], without: str = "") -> str:
    """The fix that names `modules`, each once; none are left where all of a layer would be."""
    left = dict.fromkeys(module for module in modules if module != without)
    return marked("cuda_graph_modules", *left) if left else marked("cuda_graph_impl", "none")


def _modules(raw: RawSettings, revision: Revision) -> Match | None:
    wanted = () if raw.cuda_graph_modules == ("full",) else raw.cuda_graph_modules
    found, field = unknown(wanted, revision.cuda_graph_modules), revision.cuda_graph_field
    if found is None:
        return None
    if "full" in found.names:
        others = [module for module in wanted if module != "full"]
        return Match(
            f"{field} has full, which cannot be combined with {names(others)}", _capture(others)
        )
    return Match(f"{field} {found}: not accepted by {revision.label}", found.advice)


def _impl(raw: RawSettings, revision: Revision) -> Match | None:
    found = unknown((raw.cuda_graph_impl,), revision.cuda_graph_impls)
    if found is None:
        return None
    old_spelling = "[cuda_graph_impl=local] and [cuda_graph_modules=full_iteration]"
    return Match(
        f"cuda_graph_impl = {found}: not accepted by {revision.label}",
        old_spelling if found.first == "full_iteration" else found.advice,
    )


def _full_iteration(raw: RawSettings, revision: Revision) -> Match | None:
    graphs = graphs_of(raw, revision)
    if graphs.impl == "full_iteration" and graphs.modules and revision.at_least(0, 18):
        return Match(
            "cuda_graph_impl = full_iteration cannot be combined with cuda_graph_modules "
            f"{names(graphs.modules)}",
            "[cuda_graph_modules]",
        )
    if graphs.impl != "transformer_engine" or "full_iteration" not in graphs.modules:
        return None
    return Match(
        "cuda_graph_impl = transformer_engine cannot be combined with scope full_iteration",
        "[cuda_graph_impl=full_iteration] and [cuda_graph_modules]"
        if revision.at_least(0, 18)
        else "[cuda_graph_impl=local] and [cuda_graph_modules=full_iteration]",
    )


def _kind_that_stays_on_device(raw: RawSettings, revision: Revision) -> str:
    """The kind of graphs, where it does not go with cpu_offloading."""
    graphs = graphs_of(raw, revision)
    excepted = revision.at_least(0, 18) and graphs.impl == "full_iteration"
    read = revision.cuda_graph_impls or raw.enable_cuda_graph
    return graphs.impl if graphs.on and read and not excepted else ""


def _captured(raw: RawSettings, revision: Revision) -> Set[str]:
    """Modules that single graphs name; the local implementation takes router and preprocess
    together."""
    graphs = graphs_of(raw, revision)
    if not graphs.on or graphs.impl == "full_iteration":
        return frozenset()
    router = {"moe_router", "moe_preprocess"}
    modules = frozenset(graphs.modules)
    return modules | router if graphs.impl == "local" and modules & router else modules


def _router_modules(raw: RawSettings, revision: Revision) -> Match | None:
    modules = _captured(raw, revision)
    if {"moe", "moe_router"} <= modules:
        return Match(
            "the graph captures both moe and moe_router",
            _capture(graphs_of(raw, revision).modules, without="moe"),
        )
    if "moe_preprocess" in modules and "moe_router" not in modules:
        return Match(
            "the graph captures moe_preprocess, which needs moe_router",
            _capture((*graphs_of(raw, revision).modules, "moe_router")),
        )
    return None


def _copies_counts(raw: RawSettings) -> bool:
    """Whether the dispatch copies to the host before it exchanges anything."""
    return raw.moe_token_dispatcher_type == "alltoall" and (
        raw.has_capacity or raw.moe_router_padding_for_fp8
    )


def _dropless(raw: RawSettings, revision: Revision) -> Match | None:
    modules = _captured(raw, revision)
    if "moe" in modules:
        return Match(
            "the graph captures moe, whose shapes vary without drop-and-pad",
            _apart(raw, revision),
        )
    if "moe_preprocess" not in modules or not _copies_counts(raw):
        return None
    return Match(
        "the graph captures moe_preprocess, which copies to the host if a capacity factor "
        "or moe_router_padding_for_fp8 is set",
        _apart(raw, revision),
    )


def _refused_by_bridge(graphs: Graphs, revision: Revision) -> bool:
    """Whether launchers.py has a rule against all such graphs."""
    bridge = revision.framework == Framework.MEGATRON_BRIDGE and revision.at_least(0, 19)
    return bridge and graphs.impl == "local"


def _whole_layers(raw: RawSettings, revision: Revision) -> Match | None:
    graphs = graphs_of(raw, revision)
    fixed = raw.moe_expert_rank_capacity_factor is not None or raw.moe_ncclep_static_shape
    of_gpt = graphs.impl == "local" and "attn" in graphs.modules and not raw.hybrid_layer_pattern
    whole = graphs.on and not graphs.iteration and (of_gpt or not graphs.modules)
    if not whole or not raw.is_dropless or fixed or _refused_by_bridge(graphs, revision):
        return None
    why = "cuda_graph_impl is local" if of_gpt else f"{revision.cuda_graph_field} is empty"
    return Match(
        f"{why}, so graphs capture whole layers; dropless experts wait for the host "
        "to count their tokens, which a graph cannot capture",
        _apart(raw, revision),
    )


def counts_on_host(raw: RawSettings, revision: Revision) -> str:
    """The dispatcher that reads the counts of tokens on the host, all but HybridEP and NCCL's; none
    where experts take a fixed number."""
    if not raw.is_dropless:
        return ""
    dispatcher, backend = raw.moe_token_dispatcher_type, raw.moe_flex_dispatcher_backend
    if dispatcher != "flex":
        return dispatcher
    return "flex (deepep)" if backend in ("", "deepep") or not revision.at_least(0, 16) else ""


def _whole_iteration(raw: RawSettings, revision: Revision) -> Match | None:
    dispatcher = counts_on_host(raw, revision)
    if not dispatcher or not graphs_of(raw, revision).iteration:
        return None
    hybrid = "[moe_token_dispatcher_type=flex] and [moe_flex_dispatcher_backend=hybridep]"
    return Match(
        f"the graph of the whole iteration includes the {dispatcher} dispatcher, which waits for "
        "the host to count the tokens of dropless experts",
        f"{engine_of_parts(raw, revision)}, or {hybrid}",
    )


def _mlp_of_experts(raw: RawSettings, revision: Revision) -> Match | None:
    mixed = "the graph captures mlp, but every layer is a mixture of experts"
    return Match(mixed, _apart(raw, revision)) if "mlp" in _captured(raw, revision) else None


def engine_of_parts(raw: RawSettings, revision: Revision) -> str:
    """The fix by Transformer Engine's graphs of what they can hold."""
    modules = marked("cuda_graph_modules", *capturable(raw, "transformer_engine", revision))
    return f"{marked('cuda_graph_impl', 'transformer_engine')} and {modules}"


def _apart(raw: RawSettings, revision: Revision) -> str:
    """The fix by graphs of parts of layers, which Megatron's own hold of hybrid models alone
    (transformer_layer.py create_mcore_cudagraph_manager; GPT has no MoETransformerLayer)."""
    impl = graphs_of(raw, revision).impl
    if impl == "local" and not raw.hybrid_layer_pattern:
        return engine_of_parts(raw, revision)
    return _capture(capturable(raw, impl, revision))


def capturable(raw: RawSettings, impl: str, revision: Revision) -> tuple[str, ...]:
    """What can be captured next to experts that take as many tokens as come; all of a dense model
    under two names."""
    if not raw.has_experts:
        return "attn", "mlp"
    mixers = ("attn", "mamba") if "M" in (raw.hybrid_layer_pattern or "") else ("attn",)
    engine, copies = impl == "transformer_engine", _copies_counts(raw)
    if replayed(raw, "moe") if engine else copies:
        return mixers
    fused = raw.moe_permute_fusion or revision.at_least(0, 17)
    waits = copies or (raw.moe_token_dispatcher_type == "alltoall" and not fused)
    return (*mixers, "moe_router") if waits else (*mixers, "moe_router", "moe_preprocess")


def _attention_alone(raw: RawSettings, revision: Revision) -> bool:
    """Whether Transformer Engine's graphs capture attention and nothing else."""
    graphs = graphs_of(raw, revision)
    return graphs.impl == "transformer_engine" and graphs.modules == ("attn",)


def _kind_without_recompute(raw: RawSettings, revision: Revision) -> str:
    """The kind of graphs, where it does not go with recompute: up to 0.14 any, in 0.15 all but
    Transformer Engine's of attn with selective recompute."""
    graphs = graphs_of(raw, revision)
    applies = raw.enable_cuda_graph
    if revision.at_least(0, 15):
        applies = graphs.on and (raw.full or not _attention_alone(raw, revision))
    return graphs.impl if applies else ""


def _kind_without_full(raw: RawSettings, revision: Revision) -> str:
    """The kind of graphs, where it does not hold the whole iteration."""
    graphs = graphs_of(raw, revision)
    return graphs.impl if graphs.on and not graphs.iteration else ""


def _captures(raw: RawSettings, revision: Revision, module: str) -> bool:
    return graphs_of(raw, revision).captures(module)


def _offload(raw: RawSettings, revision: Revision) -> Match | None:
    graphs = graphs_of(raw, revision)
    if graphs.impl == "local":
        return _local_graph_offload(raw, revision, graphs.modules)
    most = raw.fine_grained_offloading_max_inflight_offloads
    if graphs.impl == "full_iteration" and (most is None or most < 0):
        return Match(
            "offload_modules with a full-iteration graph needs "
            "fine_grained_offloading_max_inflight_offloads",
            "set fine_grained_offloading_max_inflight_offloads to 0 or more",
        )
    if "moe" in graphs.modules:
        return Match(
            "offload_modules cannot be combined with a graph that captures moe",
            "drop one of the two",
        )
    if raw.cuda_graph_warmup_steps > 0:
        return None
    return Match(
        "offload_modules cannot be combined with cuda_graph_warmup_steps = 0",
        "set cuda_graph_warmup_steps 3",
    )


def _local_graph_offload(
    raw: RawSettings, revision: Revision, captured: tuple[str, ...]
) -> Match | None:
    outside = [m for m in raw.offload_modules if m not in INSIDE_MOE]
    if not revision.at_least(0, 19):
        reason = "offload_modules cannot be combined with cuda_graph_impl = local"
    elif outside:
        reason = f"offload of {names(outside)} cannot be combined with cuda_graph_impl = local"
    elif not captured:
        reason = "offload_modules cannot be combined with local CUDA graphs of whole layers"
    else:
        return None
    return Match(reason, "use cuda_graph_impl transformer_engine, or drop the offload")


RULES: Final = stated(
    "cuda_graphs",
    cuda_graph_flags=_flags,
    cuda_graph_modules=_modules,
    cuda_graph_impl=_impl,
    cuda_graph_full_iteration=_full_iteration,
    cuda_graph_cpu_offloading=_kind_that_stays_on_device,
    cuda_graph_router_modules=_router_modules,
    cuda_graph_experts_of_dense=lambda raw, revision: sorted(
        _captured(raw, revision) & {"moe", "moe_router"}
    ),
    cuda_graph_mlp_of_experts=_mlp_of_experts,
    cuda_graph_dropless=_dropless,
    # TransformerConfig accepts it; the dispatchers copy the counts and synchronize.
    cuda_graph_whole_experts=_whole_layers,
    cuda_graph_iteration_experts=_whole_iteration,
    cuda_graph_any_recompute=_kind_without_recompute,
    cuda_graph_attn_recompute=lambda raw, revision: (
        _attention_alone(raw, revision)
        and [m for m in raw.recomputed_modules if m in ("core_attn", "mla_up_proj")][:1]
    ),
    cuda_graph_full_recompute=_kind_without_full,
    cuda_graph_attention_dropout=lambda raw, revision: _captures(raw, revision, "attn"),
    cuda_graph_hidden_dropout=lambda raw, revision: [
        label for label in replayed(raw, "mlp", "moe") if _captures(raw, revision, label)
    ],
    cuda_graph_router_jitter=lambda raw, revision: _captures(raw, revision, "moe"),
    cuda_graph_offload=_offload,
)
