"""What Megatron-LM's command line and Megatron Bridge refuse beyond TransformerConfig.

Sources: megatron-core wheels 0.17.1 to 0.19.2 training/arguments.py (validate_args); Megatron
Bridge main 067f987 training/config.py.
"""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict

_BRIDGE: Final = "Megatron Bridge main 067f987 training/config.py"


def checkpoint_activations(raw: RawSettings, revision: Revision) -> Problem | None:
    """--checkpoint-activations is gone: the program prints a hint and exits."""
    if not raw.checkpoint_activations:
        return None
    return Problem(
        "--checkpoint-activations is no longer valid",
        "use --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    )


def distribute_needs_tp(raw: RawSettings, revision: Revision) -> Problem | None:
    """--distribute-saved-activations needs tensor parallelism."""
    if not raw.distribute_saved_activations or raw.tensor_model_parallel_size > 1:
        return None
    return Problem(
        "distribute_saved_activations with tensor_model_parallel_size = "
        f"{raw.tensor_model_parallel_size}",
        "drop distribute_saved_activations, or use tensor_model_parallel_size >= 2",
        "AssertionError: can distribute recomputed activations only across tensor model parallel",
    )


def distribute_needs_full(raw: RawSettings, revision: Revision) -> Problem | None:
    """--distribute-saved-activations needs full recompute."""
    if not raw.distribute_saved_activations or raw.full:
        return None
    return Problem(
        "distribute_saved_activations with recompute_granularity = "
        f"{raw.recompute_granularity or 'none'}",
        "drop distribute_saved_activations, or use full recompute",
        "AssertionError: distributed recompute activations is only application to full recompute",
    )


def selective_with_method(raw: RawSettings, revision: Revision) -> Problem | None:
    """--recompute-method does not go with selective recompute."""
    if not raw.selective or raw.recompute_method is None:
        return None
    return Problem(
        f"recompute_method = {raw.recompute_method} with recompute_granularity = selective",
        "drop recompute_method",
        "AssertionError: recompute method is not yet supported for selective recomputing",
    )


def recompute_modules_empty(raw: RawSettings, revision: Revision) -> Problem | None:
    """--recompute-modules takes at least one module (from 0.16 on, nargs="+")."""
    if not raw.selective or raw.recompute_modules != () or not revision.at_least(0, 16):
        return None
    return Problem(
        "selective recompute with an empty list of modules, which the command line cannot express",
        "drop recompute_granularity: an empty list recomputes nothing",
        "SystemExit: argument --recompute-modules: expected at least one argument",
    )


def offload_needs_te_impl(raw: RawSettings, revision: Revision) -> Problem | None:
    """Offload of modules needs transformer_impl transformer_engine."""
    if not raw.fine_grained_activation_offloading or raw.transformer_impl == "transformer_engine":
        return None
    return Problem(
        f"fine_grained_activation_offloading with transformer_impl = {raw.transformer_impl}",
        "use transformer_impl transformer_engine, or drop the offload",
        "AssertionError: Fine-grained activation offloading is only supported with",
    )


def graphs_with_expandable_segments(raw: RawSettings, revision: Revision) -> Problem | None:
    """0.14 and 0.15 refuse CUDA graphs with expandable_segments:True."""
    graphs = graphs_of(raw, revision)
    concerned = revision.number in ((0, 14), (0, 15))
    if not raw.expandable_segments or not graphs.on or not concerned:
        return None
    return Problem(
        f"CUDA graphs ({graphs.impl}) with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "drop expandable_segments, or use megatron-core 0.16 with NCCL_GRAPH_REGISTER=0",
        "AssertionError: expandable_segments:True may not be safe when using CUDA Graphs with",
    )


def graph_register_environment(raw: RawSettings, revision: Revision) -> Problem | None:
    """From 0.16 on TE graphs with expandable segments need NCCL_GRAPH_REGISTER=0."""
    graphs = graphs_of(raw, revision)
    te = graphs.impl == "transformer_engine" and revision.at_least(0, 16)
    if not te or not raw.expandable_segments:
        return None
    return Problem(
        "cuda_graph_impl = transformer_engine with expandable_segments:True is refused unless "
        "NCCL_GRAPH_REGISTER=0",
        "export NCCL_GRAPH_REGISTER=0",
    )


def offload_environment(raw: RawSettings, revision: Revision) -> Problem | None:
    """Offload of modules needs NVTE_CPU_OFFLOAD_V1=1 with Transformer Engine 2.10 and newer."""
    if not raw.fine_grained_activation_offloading or not revision.offload_modules:
        return None
    return Problem(
        "module offload is refused with Transformer Engine >= 2.10 unless NVTE_CPU_OFFLOAD_V1=1",
        "export NVTE_CPU_OFFLOAD_V1=1",
    )


def bridge_offload_needs_te_impl(raw: RawSettings, revision: Revision) -> Problem | None:
    """Bridge: offload of modules needs transformer_impl transformer_engine."""
    problem = offload_needs_te_impl(raw, revision)
    if problem is None:
        return None
    return Problem(
        problem.reason,
        problem.fix,
        "ValueError: Fine-grained activation offloading is only supported with transformer_engine",
    )


def bridge_local_graphs(raw: RawSettings, revision: Revision) -> Problem | None:
    """Bridge (0.6 and newer): cuda_graph_impl local is for full-iteration graphs only."""
    graphs = graphs_of(raw, revision)
    if graphs.impl != "local" or graphs.iteration or not revision.at_least(0, 19):
        return None
    return Problem(
        "cuda_graph_impl = local that captures layers or modules",
        "use cuda_graph_impl transformer_engine or full_iteration",
        'ValueError: Megatron Bridge supports model.cuda_graph_impl="local" only for',
    )


def fp8_recompute_te_version(raw: RawSettings, revision: Revision) -> Problem | None:
    """layernorm or moe_act recompute with fp8 needs Transformer Engine 2.6."""
    labels = {"layernorm", "moe_act"} & set(raw.effective_modules)
    if not raw.fp8 or not raw.selective or not labels or raw.delayed_scaling:
        return None
    if not revision.at_least(0, 14):
        return None
    return Problem(
        f"recompute of {' and '.join(sorted(labels))} with fp8 is refused below Transformer "
        "Engine 2.6",
        "use transformer-engine >= 2.6",
    )


RULES: Final = (
    Rule("checkpoint_activations", Verdict.REFUSED, Authority.LAUNCHER, checkpoint_activations),
    Rule("distribute_needs_tp", Verdict.REFUSED, Authority.LAUNCHER, distribute_needs_tp),
    Rule("distribute_needs_full", Verdict.REFUSED, Authority.LAUNCHER, distribute_needs_full),
    Rule("selective_with_method", Verdict.REFUSED, Authority.LAUNCHER, selective_with_method),
    Rule(
        "recompute_modules_empty",
        Verdict.REFUSED,
        Authority.LAUNCHER,
        recompute_modules_empty,
        "megatron-core 0.17.1 training/argument_utils.py",
    ),
    Rule("offload_needs_te_impl", Verdict.REFUSED, Authority.LAUNCHER, offload_needs_te_impl),
    Rule(
        "graphs_with_expandable_segments",
        Verdict.REFUSED,
        Authority.LAUNCHER,
        graphs_with_expandable_segments,
    ),
    Rule(
        "graph_register_environment", Verdict.NOTE, Authority.LAUNCHER, graph_register_environment
    ),
    Rule("offload_environment", Verdict.NOTE, Authority.LAUNCHER, offload_environment),
    Rule(
        "bridge_offload_needs_te_impl",
        Verdict.REFUSED,
        Authority.BRIDGE,
        bridge_offload_needs_te_impl,
        _BRIDGE,
    ),
    Rule("bridge_local_graphs", Verdict.REFUSED, Authority.BRIDGE, bridge_local_graphs, _BRIDGE),
    Rule(
        "bridge_offload_environment", Verdict.NOTE, Authority.BRIDGE, offload_environment, _BRIDGE
    ),
    Rule("fp8_recompute_te_version", Verdict.NOTE, Authority.CONFIG, fp8_recompute_te_version),
)
