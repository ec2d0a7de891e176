"""What to paste into Megatron-LM's command line for a setting and its job.

Option names and arities: megatron-core wheels 0.17.1, 0.18.2 and 0.19.2 training/arguments.py and
argument_utils.py (options made from TransformerConfig's fields), which agree on all options here
but those of CUDA graphs.
"""

import shlex
from collections.abc import Iterator

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.megatron.attention_flags import attention_flags
from advisor.frameworks.megatron.bridge import bridge_layout_overrides, bridge_overrides
from advisor.frameworks.megatron.expert_flags import expert_flags
from advisor.frameworks.megatron.hybrid_flags import hybrid_flags
from advisor.frameworks.megatron.lowering import FP8_RECIPES
from advisor.frameworks.megatron.muon import muon_flags
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, RecomputeSetting
from advisor.job.job import CudaGraphImpl, Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import most_layers_of_chunk
from advisor.models.attention_kinds import CpCommType
from advisor.models.spec import AttentionBackend, CrossEntropyFusion, TransformerImpl

__all__ = [
    "bridge_layout_overrides",
    "bridge_overrides",
    "environment",
    "layout_flags",
    "megatron_lm_flags",
]


def megatron_lm_flags(setting: RecomputeSetting, job: Job, revision: Revision) -> str:
    """Recompute flags; empty where nothing is recomputed, which is Megatron-LM's default.

    An unset list of modules is written out as the core_attn that Megatron makes of it, so that the
    flags say what runs. An empty list gives no flags: --recompute-modules needs at least one.

    >>> megatron_lm_flags(selective("mlp"), job, revision)
    '--recompute-granularity selective --recompute-modules mlp'
    """
    return shlex.join((*_recompute(setting), *_offload(setting)))


def _recompute(setting: RecomputeSetting) -> Iterator[str]:
    if setting.granularity is Granularity.SELECTIVE and setting.effective_modules:
        yield from ("--recompute-granularity", "selective")
        yield from ("--recompute-modules", *setting.effective_modules)
    if setting.granularity is Granularity.FULL:
        yield from ("--recompute-granularity", "full")
        yield from ("--recompute-method", str(setting.method))
        yield from ("--recompute-num-layers", str(setting.num_layers))
        if setting.distribute_saved_activations:
            yield "--distribute-saved-activations"


def _offload(setting: RecomputeSetting) -> Iterator[str]:
    if setting.offload_modules:
        yield "--fine-grained-activation-offloading"
        yield from ("--offload-modules", *setting.offload_modules)
    if setting.cpu_offloading_num_layers:
        yield from ("--cpu-offloading-num-layers", str(setting.cpu_offloading_num_layers))


def layout_flags(job: Job, revision: Revision) -> str:
    """Parallel degrees, batch, precision, implementation and CUDA graphs of the job.

    VPP is written as layers of a model chunk (--num-layers-per-virtual-pipeline-stage), the
    spelling that every release takes.
    """
    parts = (
        *_degrees(job),
        *hybrid_flags(job.model, revision),
        *muon_flags(job, revision),
        *_optimizer(job),
        *_batch(job),
        *_precision(job),
        *_implementation(job),
    )
    return shlex.join((*parts, *_graphs(job, revision)))


def _degrees(job: Job) -> Iterator[str]:
    layout = job.layout
    yield from ("--tensor-model-parallel-size", str(layout.tensor_model_parallel_size))
    if layout.sequence_parallel:
        yield "--sequence-parallel"
    if layout.tp_comm_overlap:
        yield "--tp-comm-overlap"
    yield from ("--context-parallel-size", str(layout.context_parallel_size))
    if layout.context_parallel_size > 1 and layout.cp_comm_type is not CpCommType.P2P:
        yield from ("--cp-comm-type", str(layout.cp_comm_type))
    if layout.hierarchical_context_parallel_sizes:
        sizes = map(str, layout.hierarchical_context_parallel_sizes)
        yield from ("--hierarchical-context-parallel-sizes", *sizes)
    yield from ("--pipeline-model-parallel-size", str(layout.pipeline_model_parallel_size))
    if layout.virtual_pipeline_model_parallel_size > 1 and not job.model.hybrid_layer_pattern:
        yield from _virtual_stages(job)
    yield from _uneven_split(layout)
    yield from expert_flags(job.model, layout)
    yield from attention_flags(job.model)


def _virtual_stages(job: Job) -> Iterator[str]:
    layout = job.layout
    if layout.splits_evenly:
        layers = most_layers_of_chunk(job.model, layout)
        yield from ("--num-layers-per-virtual-pipeline-stage", str(layers))
    elif not layout.pipeline_model_parallel_layout:
        chunks = str(layout.virtual_pipeline_model_parallel_size)
        yield from ("--num-virtual-stages-per-pipeline-rank", chunks)


def _uneven_split(layout: ParallelLayout) -> Iterator[str]:
    if layout.num_layers_in_first_pipeline_stage is not None:
        first = str(layout.num_layers_in_first_pipeline_stage)
        yield from ("--decoder-first-pipeline-num-layers", first)
    if layout.num_layers_in_last_pipeline_stage is not None:
        last = str(layout.num_layers_in_last_pipeline_stage)
        yield from ("--decoder-last-pipeline-num-layers", last)
    if layout.account_for_embedding_in_pipeline_split:
        yield "--account-for-embedding-in-pipeline-split"
    if layout.account_for_loss_in_pipeline_split:
        yield "--account-for-loss-in-pipeline-split"
    if layout.pipeline_model_parallel_layout:
        yield from ("--pipeline-model-parallel-layout", layout.pipeline_model_parallel_layout)


def _optimizer(job: Job) -> Iterator[str]:
    layout = job.layout
    if layout.use_distributed_optimizer:
        yield "--use-distributed-optimizer"
    if layout.overlap_grad_reduce:
        yield "--overlap-grad-reduce"
    # Refused without the distributed optimizer and without --overlap-grad-reduce.
    sharded = layout.use_distributed_optimizer and layout.overlap_grad_reduce
    if layout.overlap_param_gather and sharded:
        yield "--overlap-param-gather"


def _batch(job: Job) -> Iterator[str]:
    config = job.config
    yield from ("--seq-length", str(config.seq_length))
    yield from ("--micro-batch-size", str(config.micro_batch_size))
    yield from ("--global-batch-size", str(config.global_batch_size))
    yield from _mask(config)


def _mask(config: JobConfig) -> Iterator[str]:
    """The data loader makes a boolean mask of all pairs of positions, unless it is told not to."""
    if not config.loads_attention_mask:
        yield "--no-create-attention-mask-in-dataloader"


def _precision(job: Job) -> Iterator[str]:
    """--bf16 alone reduces gradients in fp32; --fp16 alone does not."""
    config = job.config
    if config.precision is Precision.FP16:
        yield "--fp16"
        if config.main_grads_dtype is DType.FP32:
            yield "--accumulate-allreduce-grads-in-fp32"
        return
    yield "--bf16"
    if config.main_grads_dtype is DType.BF16:
        yield "--grad-reduce-in-bf16"
    if config.precision.is_fp8:
        yield from ("--fp8-format", "hybrid", "--fp8-recipe", FP8_RECIPES[config.precision])
    if config.precision is Precision.NVFP4:
        yield from ("--fp4-format", "e2m1", "--fp4-recipe", "nvfp4")
    if config.fp8_param_gather:
        yield "--fp8-param-gather"
    yield from _sixteen_bit_layers(job)
    yield from _optimizer_types(config)


def _sixteen_bit_layers(job: Job) -> Iterator[str]:
    model = job.model
    if model.first_last_layers_bf16 and job.config.precision.is_quantized:
        yield "--first-last-layers-bf16"
        yield from ("--num-layers-at-start-in-bf16", str(model.num_layers_at_start_in_bf16))
        yield from ("--num-layers-at-end-in-bf16", str(model.num_layers_at_end_in_bf16))


def _optimizer_types(config: JobConfig) -> Iterator[str]:
    if not config.use_precision_aware_optimizer:
        return
    yield "--use-precision-aware-optimizer"
    for option in ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        dtype = getattr(config, option)
        if dtype is not DType.FP32:
            yield from (f"--{option.replace('_', '-')}", _TYPE_NAMES[dtype])
    if config.optimizer_cpu_offload:
        yield "--optimizer-cpu-offload"
        yield from ("--optimizer-offload-fraction", f"{config.optimizer_offload_fraction:g}")
        if config.overlap_cpu_optimizer_d2h_h2d:
            yield "--overlap-cpu-optimizer-d2h-h2d"


_TYPE_NAMES = {DType.FP16: "fp16", DType.BF16: "bf16", DType.FLOAT8: "fp8"}


def _implementation(job: Job) -> Iterator[str]:
    if job.model.transformer_impl is TransformerImpl.LOCAL:
        yield from ("--transformer-impl", "local")
    yield from ("--attention-backend", str(job.model.attention_backend))
    yield from _loss(job)


def _loss(job: Job) -> Iterator[str]:
    fusion = job.model.cross_entropy_fusion
    if fusion is not CrossEntropyFusion.NONE:
        yield from ("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl", str(fusion))


def assumed_flags(job: Job, revision: Revision) -> str:
    """What a prediction rests on and Megatron-LM does not do by itself: without these flags the job
    is another one. Degrees and batch are not among them (layout_flags has everything)."""
    parts: list[str] = []
    config, model = job.config, job.model
    if config.precision is not Precision.BF16 or config.main_grads_dtype is not DType.FP32:
        parts += _precision(job)
    if model.transformer_impl is TransformerImpl.LOCAL:
        parts += ["--transformer-impl", "local"]
    if model.attention_backend is not AttentionBackend.AUTO:
        parts += ["--attention-backend", str(model.attention_backend)]
    parts += muon_flags(job, revision)
    return shlex.join((*parts, *_loss(job), *_mask(config), *_graphs(job, revision)))


def _graphs(job: Job, revision: Revision) -> Iterator[str]:
    """Options of CUDA graphs by release; a graph of the whole iteration excludes the NaN check."""
    config = job.config
    impl = config.cuda_graph_impl
    if impl is CudaGraphImpl.NONE:
        return
    whole = impl is CudaGraphImpl.FULL_ITERATION
    modules = config.cuda_graph_modules
    if whole and "full_iteration" not in revision.cuda_graph_impls:
        impl, modules = CudaGraphImpl.LOCAL, ("full_iteration",)
    if revision.cuda_graph_impls:
        yield from ("--cuda-graph-impl", str(impl))
    else:
        te = impl is CudaGraphImpl.TRANSFORMER_ENGINE
        yield "--external-cuda-graph" if te else "--enable-cuda-graph"
    if modules:
        yield from (f"--{revision.cuda_graph_field.replace('_', '-')}", *modules)
    if whole:
        yield "--no-check-for-nan-in-loss-and-grad"


def environment(setting: RecomputeSetting, job: Job, revision: Revision) -> tuple[str, ...]:
    """Environment variables, ``NAME=value``, without which the job is refused or runs otherwise.

    Source: megatron-core 0.19.2 training/arguments.py:1854-1887.
    """
    variables = []
    if job.config.expandable_segments:
        variables.append("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
        if job.config.cuda_graph_impl is CudaGraphImpl.TRANSFORMER_ENGINE:
            variables.append("NCCL_GRAPH_REGISTER=0")
    if setting.offload_modules:
        variables.append("NVTE_CPU_OFFLOAD_V1=1")
    return tuple(variables)
