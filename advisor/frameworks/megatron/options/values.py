"""How values of Megatron's options follow from a job, where they are not just a field of ours; and
in which jobs options are emitted. The rows of configs/options/megatron.json name these."""

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.option import Described, ValueOf
from advisor.job.job import RECIPES_OF_PRECISIONS, CudaGraphImpl, Fp8Recipe, Optimizer
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import most_layers_of_chunk
from advisor.models import options


def bridge_adapter(job: Described, revision: Revision) -> object:
    """The kind of adapter that Megatron Bridge adds; none are mcore-bridge's."""
    tuning = job.config.tuning
    return "none" if tuning.cut_by_tokens else str(tuning.adapter)


FSDP_STRATEGIES: Final = {
    "no_shard": DataParallelSharding.NONE,
    "optim": DataParallelSharding.OPTIMIZER,
    "optim_grads": DataParallelSharding.GRADIENTS,
    "optim_grads_params": DataParallelSharding.FULL,
}
"""Sharding by Megatron-FSDP's names."""
_NAMES_OF_STRATEGIES: Final = {sharding: name for name, sharding in FSDP_STRATEGIES.items()}


def runs_fsdp(job: Described) -> bool:
    """Whether Megatron-FSDP takes the place of Megatron's DDP."""
    return job.layout.data_parallel_sharding is not None


def of_fsdp(value: object) -> ValueOf:
    """A value that Megatron-FSDP alone has, such as the one format of checkpoints that it takes."""
    return lambda job, _: value if runs_fsdp(job) else UNSET


def fsdp_strategy(field: str) -> ValueOf:
    """What a field of the layout shards."""
    return lambda job, _: (
        _NAMES_OF_STRATEGIES.get(getattr(job.layout, field)) if runs_fsdp(job) else UNSET
    )


def fsdp_gradients(job: Described, revision: Revision) -> object:
    """Megatron-FSDP's own type of main gradients, from 0.17 on."""
    if not (runs_fsdp(job) and revision.at_least(0, 17)):
        return UNSET
    return "fp32" if job.config.main_grads_dtype is DType.FP32 else "auto"


def cp_comm_types(job: Described, revision: Revision) -> object:
    """One for all layers; nothing without context parallelism."""
    layout = job.layout
    return (str(layout.cp_comm_type),) if layout.context_parallel_size > 1 else UNSET


def hierarchical_sizes(job: Described, revision: Revision) -> object:
    """Of context parallelism, outer ones last."""
    return tuple(map(str, job.layout.hierarchical_context_parallel_sizes or ()))


def pipeline_layout(job: Described, revision: Revision) -> object:
    """The split of the layers as a text; None where there is none."""
    return job.layout.pipeline_model_parallel_layout or None


def needs_deepep(job: Described, revision: Revision) -> object:
    """Without backends the flex dispatcher runs with this one switched on alone (megatron-core 0.12
    to 0.15 token_dispatcher.py)."""
    model = job.model
    flex = model.moe_token_dispatcher_type is options.TokenDispatcher.FLEX
    return model.num_moe_experts is not None and flex and not revision.at_least(0, 16)


def one_of_all(kinds: Sequence[str]) -> str:
    """The kind of every layer; all of them where layers differ."""
    return kinds[0] if len(set(kinds)) == 1 else ",".join(kinds)


def virtual_stages(job: Described, revision: Revision) -> object:
    """Model chunks of a stage; Megatron's None where there is one."""
    chunks = job.layout.virtual_pipeline_model_parallel_size
    return chunks if chunks > 1 else None


def layers_of_virtual_stage(job: Described, revision: Revision) -> object:
    """Layers of a model chunk, the spelling of an even split that every release takes."""
    layout = job.layout
    if layout.virtual_pipeline_model_parallel_size == 1 or job.model.hybrid_layer_pattern:
        return UNSET
    return most_layers_of_chunk(job.model, layout) if layout.splits_evenly else UNSET


def window_pair(job: Described, revision: Revision) -> object:
    """Tokens before and after, as Megatron-LM's arguments read them."""
    return None if job.model.window_size is None else f"{job.model.window_size},0"


def first_number(pair: object) -> str:
    """Tokens before, of the same pair as arguments or recipes write it."""
    return str(pair).strip("()[] ").partition(",")[0].strip()


_VARIANTS_OF_MAIN: Final = {options.AttentionVariant.GATED_DELTA_NET: "gdn"}


def attention_variant(job: Described, revision: Revision) -> object:
    """Its name in the release."""
    variant = job.model.experimental_attention_variant
    if variant is None:
        return None
    return (_VARIANTS_OF_MAIN if revision.at_least(0, 20) else {}).get(variant, str(variant))


def variant_named(name: str) -> str:
    """The variant that a release calls so."""
    return next((v for v, theirs in _VARIANTS_OF_MAIN.items() if theirs == name), name)


def groups_queries(job: Described, revision: Revision) -> object:
    """Whether queries share keys and values."""
    return job.model.num_query_groups < job.model.num_attention_heads


def reads_recipe(job: Described) -> bool:
    """Whether the recipe has to be said: to FP8, or to an optimizer that it keeps from holding the
    main parameters, for which Megatron-LM's default is delayed."""
    config = job.config
    aware = config.use_precision_aware_optimizer
    return config.precision.is_fp8 or (aware and config.fp8_recipe not in (None, Fp8Recipe.DELAYED))


MIXED_PRECISION: Final = {
    Precision.BF16: "bf16_mixed",
    Precision.FP16: "fp16_mixed",
    Precision.FP8_DELAYED: "bf16_with_fp8_delayed_scaling_mixed",
    Precision.FP8_CURRENT: "bf16_with_fp8_current_scaling_mixed",
    Precision.FP8_BLOCKWISE: "bf16_with_fp8_subchannel_scaling_mixed",
    Precision.MXFP8: "bf16_with_mxfp8_mixed",
    Precision.NVFP4: "bf16_with_nvfp4_mixed",
}
"""Megatron Bridge's name of each precision (training/mixed_precision.py)."""


def mixed_precision(job: Described, revision: Revision) -> object:
    """Bridge's name of the precision, which overwrites fp8 and gradient types at validation."""
    return MIXED_PRECISION[job.config.precision]


def fp8_format(job: Described, revision: Revision) -> object:
    """Forward in E4M3, backward in E5M2 where the recipe has both."""
    return "hybrid" if job.config.precision.is_fp8 else None


def fp8_recipe(job: Described, revision: Revision) -> object:
    """The scaling recipe; 0.11 has delayed scaling alone, and no option for it."""
    recipe = RECIPES_OF_PRECISIONS.get(job.config.precision, job.config.fp8_recipe)
    if recipe is Fp8Recipe.DELAYED and not revision.at_least(0, 12):
        return UNSET
    return str(recipe) if recipe else UNSET


def fp4_format(job: Described, revision: Revision) -> object:
    """The only one that is modelled."""
    return "e2m1" if job.config.precision is Precision.NVFP4 else None


def fp4_recipe(job: Described, revision: Revision) -> object:
    """The only one that is modelled."""
    return "nvfp4" if job.config.precision is Precision.NVFP4 else UNSET


_TYPE_NAMES: Final = {
    DType.FP32: "fp32",
    DType.FP16: "fp16",
    DType.BF16: "bf16",
    DType.FLOAT8: "fp8",
}


def optimizer_type(field: str) -> ValueOf:
    """Megatron-LM's name of a type of the optimizer's tensors."""
    return lambda job, revision: _TYPE_NAMES[getattr(job.config, field)]


def torch_type(field: str) -> ValueOf:
    """torch's name of a type of the optimizer's tensors; an 8-bit one is held as uint8."""
    held = {DType.FLOAT8: DType.UINT8}

    def named(job: Described, revision: Revision) -> object:
        kind = getattr(job.config, field)
        return f"torch.{held.get(kind, kind)}"

    return named


def deals_whole_tensors(job: Described, revision: Revision) -> object:
    """From 0.18 on by default matrices are packed into padded buffers, and the others go to the
    distributed optimizer; the model is of the older way."""
    deals = job.config.optimizer is Optimizer.DIST_MUON and revision.at_least(0, 18)
    return False if deals else UNSET


def element_type(name: object) -> str:
    """The type of the optimizer's tensors that Megatron-LM or torch calls so."""
    text = str(name).removeprefix("torch.")
    return "float8" if text == "fp8" else text


def _graph(job: Described, revision: Revision) -> tuple[CudaGraphImpl, tuple[str, ...]]:
    """Before 0.18 a graph of the whole iteration is spelt local with scope full_iteration."""
    impl = job.config.cuda_graph_impl
    if impl is CudaGraphImpl.FULL_ITERATION and str(impl) not in revision.cuda_graph_impls:
        return CudaGraphImpl.LOCAL, ("full_iteration",)
    return impl, job.config.cuda_graph_modules


def graph_impl(job: Described, revision: Revision) -> object:
    """cuda_graph_impl, from the release on that has it."""
    return str(_graph(job, revision)[0]) if revision.cuda_graph_impls else UNSET


def old_graphs(impl: str) -> ValueOf:
    """The switch that stood for `impl` before."""
    return lambda job, revision: (
        UNSET if revision.cuda_graph_impls else _graph(job, revision)[0] == impl
    )


def graph_modules(job: Described, revision: Revision) -> object:
    """Modules that are captured; none: the whole layer."""
    return _graph(job, revision)[1]


def graph_modules_of_recipe(job: Described, revision: Revision) -> object:
    """Before 0.16 a single module, or full for the whole layer."""
    modules = _graph(job, revision)[1]
    return modules if revision.at_least(0, 16) else next(iter(modules), "full")


def checks_for_nan(job: Described, revision: Revision) -> object:
    """A graph of the whole iteration excludes the check."""
    return False if job.config.cuda_graph_impl is CudaGraphImpl.FULL_ITERATION else UNSET


def loss_fusion(job: Described, revision: Revision) -> object:
    """Whose."""
    fusion = job.model.cross_entropy_fusion
    return UNSET if fusion is options.CrossEntropyFusion.NONE else str(fusion)


truth: Final = bool
lower_case: Final = str.lower
joined: Final = ",".join
"""What values mean, as rows name it."""
