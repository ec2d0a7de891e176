"""What Megatron-LM's command line, Megatron Bridge and NeMo refuse beyond TransformerConfig.

Sources: megatron-core wheels 0.17.1 to 0.19.2 training/arguments.py (validate_args); Megatron
Bridge main 067f987 training/config.py; megatron-core 0.16.1 optimizer/muon.py and
optimizer_config.py; NVIDIA/NeMo nemo/collections/nlp/modules/common/megatron/transformer.py and
nlp/models/language_modeling/megatron_base_model.py of the 1.x releases (NeMo 2 adds nothing).
"""

from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.cuda_graphs import counts_on_host, engine_of_parts
from advisor.frameworks.megatron.rules.stated import marked, stated, unknown


def _bridge_local_graphs(raw: RawSettings, revision: Revision) -> Match | None:
    graphs = graphs_of(raw, revision)
    if graphs.impl != "local" or graphs.iteration or not revision.at_least(0, 19):
        return None
    engine = marked("cuda_graph_impl", "transformer_engine")
    if raw.has_experts or any(module.startswith("moe") for module in graphs.modules):
        engine = engine_of_parts(raw, revision)
    whole = ", or [cuda_graph_impl=full_iteration] and [cuda_graph_modules]"
    return Match(
        "cuda_graph_impl = local cannot capture layers or modules in Megatron Bridge",
        engine if counts_on_host(raw, revision) else engine + whole,
    )


RULES: Final = stated(
    "launchers",
    distribute_needs_full=lambda raw, _: raw.recompute_granularity or "none",
    graphs_with_expandable_segments=lambda raw, revision: graphs_of(raw, revision).impl,
    bridge_local_graphs=_bridge_local_graphs,
    fp8_recompute_te_version=lambda raw, _: " and ".join(
        sorted({"layernorm", "moe_act"} & set(raw.effective_modules))
    ),
)

_OPTIMIZERS: Final = ("adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon")


def _muon_overlap(raw: RawSettings, _: Revision) -> Match | None:
    both = ("overlap_grad_reduce", "overlap_param_gather")
    overlaps = [name for name in both if getattr(raw, name)]
    if not overlaps:
        return None
    what = "grad reduce" if raw.overlap_grad_reduce else "param gather"
    return Match(
        f"optimizer = muon cannot be combined with overlap_{what.replace(' ', '_')}",
        f"{' and '.join(marked(name, 'false') for name in overlaps)}, or [optimizer=dist_muon]",
    )


OPTIMIZER_RULES: Final = stated(
    "launchers.optimizer",
    optimizer_choice=lambda raw, _: unknown((raw.optimizer,), _OPTIMIZERS),
    muon_overlap=_muon_overlap,
)
"""What Megatron-LM's command line makes of --optimizer."""

NEMO_RULES: Final = stated("launchers.nemo")
FSDP_RULES: Final = stated("megatron_fsdp")
"""What Megatron-FSDP cannot be combined with."""
