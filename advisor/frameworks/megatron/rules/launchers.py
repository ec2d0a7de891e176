"""What Megatron-LM's command line, Megatron Bridge and NeMo refuse beyond TransformerConfig.

Sources: megatron-core wheels 0.17.1 to 0.19.2 training/arguments.py (validate_args); Megatron
Bridge main 067f987 training/config.py; megatron-core 0.16.1 optimizer/muon.py and
optimizer_config.py; NVIDIA/NeMo nemo/collections/nlp/modules/common/megatron/transformer.py and
nlp/models/language_modeling/megatron_base_model.py of the 1.x releases (NeMo 2 adds nothing).
"""

from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import FIRST_WITH_MUON, Revision
from advisor.frameworks.megatron.rules.conditions import unknown
from advisor.frameworks.megatron.rules.cuda_graphs import capturable, counts_on_host
from advisor.frameworks.megatron.rules.stated import marked, stated


def _bridge_local_graphs(raw: RawSettings, revision: Revision) -> Match | None:
    graphs = graphs_of(raw, revision)
    if graphs.impl != "local" or graphs.iteration or not revision.at_least(0, 19):
        return None
    engine = marked("cuda_graph_impl", "transformer_engine")
    if raw.has_experts or any(module.startswith("moe") for module in graphs.modules):
        engine += f" and {marked('cuda_graph_modules', *capturable(raw, 'transformer_engine'))}"
    whole = ", or [cuda_graph_impl=full_iteration] and [cuda_graph_modules]"
    return Match(
        "cuda_graph_impl = local cannot capture layers or modules in Megatron Bridge",
        engine if counts_on_host(raw, revision) else engine + whole,
    )


RULES: Final = stated(
    "launchers",
    distribute_needs_full=lambda raw, _: (
        raw.distribute_saved_activations and not raw.full and (raw.recompute_granularity or "none")
    ),
    recompute_modules_empty=lambda raw, revision: (
        revision.at_least(0, 16) and raw.selective and raw.recompute_modules == ()
    ),
    graphs_with_expandable_segments=lambda raw, revision: (
        raw.expandable_segments
        and revision.number in ((0, 14), (0, 15))
        and graphs_of(raw, revision).on
        and graphs_of(raw, revision).impl
    ),
    graph_register_environment=lambda raw, revision: (
        raw.expandable_segments
        and revision.at_least(0, 16)
        and graphs_of(raw, revision).impl == "transformer_engine"
    ),
    offload_environment=lambda raw, revision: (
        raw.fine_grained_activation_offloading and revision.offload_modules
    ),
    bridge_local_graphs=_bridge_local_graphs,
    fp8_recompute_te_version=lambda raw, _: (
        raw.fp8
        and raw.selective
        and not raw.delayed_scaling
        and " and ".join(sorted({"layernorm", "moe_act"} & set(raw.effective_modules)))
    ),
)

_OPTIMIZERS: Final = ("adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon")


def _muon_up_to_0_17(raw: RawSettings, revision: Revision) -> bool:
    known = revision.at_least(*FIRST_WITH_MUON) and not revision.at_least(0, 18)
    return known and raw.optimizer in ("muon", "dist_muon")


def _muon_overlap(raw: RawSettings, revision: Revision) -> Match | None:
    both = ("overlap_grad_reduce", "overlap_param_gather")
    overlaps = [name for name in both if getattr(raw, name)]
    if raw.optimizer != "muon" or not overlaps or not _muon_up_to_0_17(raw, revision):
        return None
    what = "grad reduce" if raw.overlap_grad_reduce else "param gather"
    return Match(
        f"optimizer = muon cannot be combined with overlap_{what.replace(' ', '_')}",
        f"{' and '.join(marked(name, 'false') for name in overlaps)}, or [optimizer=dist_muon]",
    )


OPTIMIZER_RULES: Final = stated(
    "launchers.optimizer",
    optimizer_choice=lambda raw, _: unknown((raw.optimizer,), _OPTIMIZERS),
    muon_release=lambda raw, revision: (
        raw.optimizer in ("muon", "dist_muon") and not revision.at_least(*FIRST_WITH_MUON)
    ),
    muon_distributed_optimizer=lambda raw, revision: (
        _muon_up_to_0_17(raw, revision) and raw.use_distributed_optimizer
    ),
    muon_becomes_layer_wise=lambda raw, revision: (
        raw.optimizer == "muon" and revision.at_least(0, 18) and raw.use_distributed_optimizer
    ),
    muon_overlap=_muon_overlap,
)
"""What Megatron-LM's command line makes of --optimizer."""


NEMO_RULES: Final = stated(
    "launchers.nemo",
    nemo_distribute=lambda raw, revision: (
        raw.distribute_saved_activations and revision.version == "1"
    ),
)
