"""What Megatron-LM's command line, Megatron Bridge and NeMo refuse beyond TransformerConfig.

Sources: megatron-core wheels 0.17.1 to 0.19.2 training/arguments.py (validate_args); Megatron
Bridge main 067f987 training/config.py; megatron-core 0.16.1 optimizer/muon.py and
optimizer_config.py; NVIDIA/NeMo nemo/collections/nlp/modules/common/megatron/transformer.py and
nlp/models/language_modeling/megatron_base_model.py of the 1.x releases (NeMo 2 adds nothing).
"""

from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.rule import Match, Verdict
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import FIRST_WITH_MUON, Revision
from advisor.frameworks.megatron.rules.conditions import unknown
from advisor.frameworks.megatron.rules.cuda_graphs import capturable, counts_on_host
from advisor.frameworks.megatron.rules.stated import (
    Authority,
    Rule,
    argument,
    arguments,
    clash,
    config,
    marked,
    names,
)

_OF_BRIDGE: Final[dict[str, Any]] = {
    "authority": Authority.BRIDGE,
    "source": "Megatron Bridge main 067f987 training/config.py",
}
_clash = partial(clash, authority=Authority.LAUNCHER)


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


_offload_needs_te_impl = _clash(
    "fine_grained_activation_offloading",
    "transformer_impl!=transformer_engine",
    "[transformer_impl=transformer_engine], or [fine_grained_activation_offloading] and "
    "[offload_modules]",
    source=arguments(1548, 1723, 1855),
    example="fine_grained_activation_offloading=true transformer_impl=local",
)
_offload_environment = argument(
    summary="Offload of modules needs NVTE_CPU_OFFLOAD_V1=1 with Transformer Engine 2.10 and "
    "newer.",
    when=lambda raw, revision: raw.fine_grained_activation_offloading and revision.offload_modules,
    reason="module offload with Transformer Engine >= 2.10 needs NVTE_CPU_OFFLOAD_V1=1",
    fix="export NVTE_CPU_OFFLOAD_V1=1",
    verdict=Verdict.NOTE,
    source=arguments(1551, 1726, 1858),
    example="fine_grained_activation_offloading=true",
)

_deterministic_loss_fusion = argument(
    when=lambda raw, _: raw.deterministic_mode and raw.cross_entropy_loss_fusion,
    reason="deterministic_mode cannot be combined with cross_entropy_loss_fusion, whose kernels "
    "are not deterministic",
    fix="[cross_entropy_loss_fusion], or [deterministic_mode]",
    source=arguments(1365, 1538, 1653),
    example="deterministic_mode=true cross_entropy_loss_fusion=true",
)

RULES: Final[dict[str, Rule]] = {
    "deterministic_loss_fusion": _deterministic_loss_fusion,
    "deterministic_tp_overlap": _clash(
        "deterministic_mode",
        "tp_comm_overlap",
        "[tp_comm_overlap], or [deterministic_mode]",
        since=(0, 19),
        source="megatron-core 0.19.2 training/determinism.py:26",
    ),
    "te_loss_fusion": replace(
        _clash(
            "cross_entropy_fusion_impl=te",
            "cross_entropy_loss_fusion",
            "[cross_entropy_fusion_impl=native], or [cross_entropy_loss_fusion]",
            since=(0, 18),
            source=arguments(0, 1529, 1643),
        ),
        summary="Megatron-LM's command line refuses Transformer Engine's fused loss.",
        reason="Megatron-LM's command line refuses cross_entropy_fusion_impl = te from 0.18 on "
        "(Megatron Core and Bridge take it)",
    ),
    "bridge_deterministic_loss_fusion": replace(_deterministic_loss_fusion, **_OF_BRIDGE),
    "checkpoint_activations": argument(
        summary="--checkpoint-activations was removed: the program prints a hint and exits.",
        when=lambda raw, _: raw.checkpoint_activations,
        reason="--checkpoint-activations is no longer valid",
        fix="use --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        source=arguments(492, 599, 583),
        example="checkpoint_activations=true",
    ),
    "distribute_needs_tp": _clash(
        "distribute_saved_activations",
        "tensor_model_parallel_size<=1",
        "drop distribute_saved_activations, or use tensor_model_parallel_size >= 2",
        source=arguments(1176, 1356, 1371),
    ),
    "distribute_needs_full": argument(
        summary="--distribute-saved-activations needs full recompute.",
        given=lambda raw, _: raw.distribute_saved_activations,
        when=lambda raw, _: not raw.full and (raw.recompute_granularity or "none"),
        reason="distribute_saved_activations cannot be combined with recompute_granularity = "
        "{found}",
        fix="drop distribute_saved_activations, or use full recompute",
        source=arguments(1179, 1359, 1374),
        example="distribute_saved_activations=true",
    ),
    "selective_with_method": _clash(
        "recompute_method",
        "recompute_granularity=selective",
        "[recompute_method]",
        source=arguments(1191, 1371, 1386),
        example="recompute_granularity=selective recompute_method=block",
    ),
    "recompute_modules_empty": argument(
        summary="--recompute-modules needs at least one module (since 0.16).",
        given=lambda _, revision: revision.at_least(0, 16),
        when=lambda raw, _: raw.selective and raw.recompute_modules == (),
        reason="the command line cannot express selective recompute with an empty list of modules",
        fix="drop recompute_granularity, since an empty list recomputes nothing",
        source="megatron-core 0.17.1 training/argument_utils.py",
        example="recompute_granularity=selective recompute_modules=",
    ),
    "offload_needs_te_impl": _offload_needs_te_impl,
    "graphs_with_expandable_segments": argument(
        summary="0.14 and 0.15 refuse CUDA graphs with expandable_segments:True.",
        given=lambda raw, revision: (
            raw.expandable_segments and revision.number in ((0, 14), (0, 15))
        ),
        when=lambda raw, revision: graphs_of(raw, revision).on and graphs_of(raw, revision).impl,
        reason="CUDA graphs ({found}) cannot be combined with "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        fix="[expandable_segments], or [>=0.16] (with NCCL_GRAPH_REGISTER=0)",
        source=arguments(1575, 1749, 1881),
        example="cuda_graph_impl=transformer_engine expandable_segments=true",
    ),
    "graph_register_environment": argument(
        summary="Since 0.16, TE graphs with expandable segments need NCCL_GRAPH_REGISTER=0.",
        given=lambda raw, revision: raw.expandable_segments and revision.at_least(0, 16),
        when=lambda raw, revision: graphs_of(raw, revision).impl == "transformer_engine",
        reason="cuda_graph_impl = transformer_engine with expandable_segments:True needs "
        "NCCL_GRAPH_REGISTER=0",
        fix="export NCCL_GRAPH_REGISTER=0",
        verdict=Verdict.NOTE,
        source=config(),
        example="cuda_graph_impl=transformer_engine expandable_segments=true",
    ),
    "offload_environment": _offload_environment,
    "bridge_offload_needs_te_impl": replace(_offload_needs_te_impl, **_OF_BRIDGE),
    "bridge_local_graphs": Rule(
        summary="Bridge (0.6 and newer): cuda_graph_impl local is for full-iteration graphs only.",
        when=_bridge_local_graphs,
        example="enable_cuda_graph=true",
        **_OF_BRIDGE,
    ),
    "bridge_offload_environment": replace(_offload_environment, **_OF_BRIDGE),
    "fp8_recompute_te_version": Rule(
        summary="layernorm or moe_act recompute with fp8 needs Transformer Engine 2.6.",
        given=lambda raw, _: raw.fp8 and raw.selective and not raw.delayed_scaling,
        when=lambda raw, _: " and ".join(
            sorted({"layernorm", "moe_act"} & set(raw.effective_modules))
        ),
        reason="recompute of {found} with fp8 needs Transformer Engine 2.6 or newer",
        fix="use transformer-engine >= 2.6",
        verdict=Verdict.NOTE,
        source=config(0, 919, 998, 1248, 1428, 1638, 1828),
        example="recompute_granularity=selective recompute_modules=layernorm fp8_recipe=mxfp8 "
        "fp8=hybrid",
    ),
}

_OPTIMIZERS: Final = ("adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon")
_ARGUMENTS: Final = "megatron-core 0.17.1 training/arguments.py:1483-1493"


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


OPTIMIZER_RULES: Final[dict[str, Rule]] = {
    "optimizer_choice": argument(
        summary="The release must know the optimizer; lion came with 0.17, soap and "
        "adaptive_muon later.",
        when=lambda raw, _: unknown((raw.optimizer,), _OPTIMIZERS),
        reason="optimizer = {found}: no release has it",
        fix="{found.advice}",
        source="megatron-core 0.19.2 training/arguments.py:2776",
        example="optimizer=adamw",
    ),
    "optimizer_offload_precision_aware": argument(
        when=lambda raw, _: raw.optimizer_cpu_offload and not raw.use_precision_aware_optimizer,
        reason="optimizer_cpu_offload needs use_precision_aware_optimizer",
        fix="[use_precision_aware_optimizer=true], or [optimizer_cpu_offload]",
        source="megatron-core 0.19.2 training/arguments.py:1803",
        example="optimizer_cpu_offload=true",
    ),
    "muon_release": argument(
        given=lambda raw, _: raw.optimizer in ("muon", "dist_muon"),
        summary="muon and dist_muon came with megatron-core 0.16.",
        when=lambda _, revision: not revision.at_least(*FIRST_WITH_MUON),
        reason="optimizer = {raw.optimizer}: {revision.label} does not have it",
        fix="[>=0.16], or [optimizer=adam]",
        source="megatron-core 0.16.1 optimizer/muon.py; absent from 0.15.3",
        example="optimizer=muon",
    ),
    "muon_distributed_optimizer": argument(
        summary="Up to 0.17, Muon does not support the distributed optimizer.",
        given=_muon_up_to_0_17,
        when=lambda raw, _: raw.use_distributed_optimizer,
        reason="optimizer = {raw.optimizer} cannot be combined with use_distributed_optimizer",
        fix="[use_distributed_optimizer] (dist_muon shards the optimizer states itself, in "
        "whole tensors)",
        source=_ARGUMENTS,
        example="optimizer=muon use_distributed_optimizer=true",
    ),
    "muon_becomes_layer_wise": argument(
        summary="Since 0.18, muon with --use-distributed-optimizer means what dist_muon meant "
        "before.",
        given=lambda raw, revision: raw.optimizer == "muon" and revision.at_least(0, 18),
        when=lambda raw, _: raw.use_distributed_optimizer,
        reason="optimizer = muon with use_distributed_optimizer shards optimizer states by whole "
        "tensors over data-parallel ranks (the layer-wise distributed optimizer)",
        fix="nothing to change: dist_muon is the older name of this combination",
        verdict=Verdict.NOTE,
        source="megatron-core 0.19.2 training/arguments.py:1669-1682",
        example="optimizer=muon use_distributed_optimizer=true",
    ),
    "muon_overlap": argument(
        summary="Up to 0.17, muon does not support overlap_grad_reduce or overlap_param_gather.",
        when=_muon_overlap,
        source=_ARGUMENTS,
        example="optimizer=muon overlap_grad_reduce=true",
    ),
    "muon_precision_aware": _clash(
        "use_precision_aware_optimizer",
        "optimizer=muon|dist_muon",
        "[use_precision_aware_optimizer], or [optimizer=adam]",
        source="megatron-core 0.16.1 optimizer/optimizer_config.py:375",
        example="optimizer=muon use_precision_aware_optimizer=true",
    ),
    "muon_replicas": _clash(
        "optimizer=dist_muon",
        "num_distributed_optimizer_instances>1",
        "[num_distributed_optimizer_instances]",
        source="megatron-core 0.19.2 optimizer/__init__.py:835",
    ),
    "muon_fp16": _clash(
        "optimizer=muon|dist_muon",
        "fp16",
        "use --bf16",
        source="megatron-core 0.16.1 optimizer/muon.py:195",
    ),
}
"""What Megatron-LM's command line makes of --optimizer."""


def _partial_microbatches(raw: RawSettings, _: Revision) -> Match | None:
    window = (
        "num_micro_batches_with_partial_activation_checkpoints",
        "activations_checkpoint_layers_per_pipeline",
    )
    given = names([name for name in window if getattr(raw, name) is not None])
    plain = raw.pipeline_model_parallel_size == 1
    if not given or not (plain or raw.mcore_gpt):
        return None
    mcore = "the model uses Megatron Core's transformer (mcore_gpt)"
    why = "there is no pipeline" if plain else mcore
    return Match(f"NeMo 1 ignores {given}: {why}", f"drop {given}")


_nemo = partial(
    Rule, authority=Authority.NEMO, source="NeMo 1.x modules/common/megatron/transformer.py"
)

NEMO_RULES: Final[dict[str, Rule]] = {
    "nemo_selective_needs_method": _nemo(
        summary="NeMo 1's own transformer needs a method for selective recompute as well.",
        when=lambda raw, _: not raw.mcore_gpt and raw.selective and raw.recompute_method is None,
        reason="activations_checkpoint_granularity = selective needs activations_checkpoint_method",
        fix="add activations_checkpoint_method uniform, or use Megatron Core's transformer "
        "(mcore_gpt true)",
        example="recompute_granularity=selective mcore_gpt=false",
    ),
    "nemo_distribute": _nemo(
        when=lambda raw, revision: raw.distribute_saved_activations and revision.version == "1",
        reason="NeMo 1 has no key for distribute_saved_activations",
        fix="drop distribute_saved_activations, or use NeMo 2",
        example="distribute_saved_activations=true",
    ),
    "nemo_default_layers": _nemo(
        when=lambda raw, _: not raw.mcore_gpt and raw.full and raw.recompute_num_layers is None,
        reason="activations_checkpoint_num_layers is unset: NeMo 1 then takes 1",
        fix="write the number you mean",
        verdict=Verdict.REPLACED,
        example="mcore_gpt=false recompute_granularity=full",
    ),
    "nemo_partial_microbatches": _nemo(
        summary="NeMo 1 ignores its keys of partial recompute without a pipeline or with Megatron "
        "Core.",
        when=_partial_microbatches,
        verdict=Verdict.NO_EFFECT,
        example="num_micro_batches_with_partial_activation_checkpoints=1",
    ),
}
