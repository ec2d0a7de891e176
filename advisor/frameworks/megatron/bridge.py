"""What to paste after a Megatron Bridge script: overrides of its ConfigContainer.

Source: Megatron Bridge main 067f987 (Hydra/OmegaConf dot lists over ConfigContainer), fields of
model providers, ddp, train and mixed_precision. Every override is quoted for the shell: brackets
are patterns there.
"""

import shlex
from collections.abc import Iterator
from typing import Final

from advisor.base.dtypes import Precision
from advisor.frameworks.megatron.attention_flags import attention_overrides
from advisor.frameworks.megatron.expert_flags import expert_overrides
from advisor.frameworks.megatron.muon import muon_overrides
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, RecomputeSetting
from advisor.job.job import CudaGraphImpl, Job
from advisor.job.layout import ParallelLayout
from advisor.models.spec import CrossEntropyFusion
from advisor.plan.split import EVEN

_MIXED_PRECISION: Final = {
    Precision.BF16: "bf16_mixed",
    Precision.FP16: "fp16_mixed",
    Precision.FP8_DELAYED: "bf16_with_fp8_delayed_scaling_mixed",
    Precision.FP8_CURRENT: "bf16_with_fp8_current_scaling_mixed",
    Precision.FP8_BLOCKWISE: "bf16_with_fp8_subchannel_scaling_mixed",
    Precision.MXFP8: "bf16_with_mxfp8_mixed",
    Precision.NVFP4: "bf16_with_nvfp4_mixed",
}


def bridge_overrides(setting: RecomputeSetting, job: Job, revision: Revision) -> str:
    """Overrides that give exactly `setting`, whatever the recipe had set before.

    A recipe's method and number of layers left in place would be refused under selective
    ("recompute_num_layers must be None"), so they are cleared; no recompute clears everything.

    >>> bridge_overrides(NONE, job, revision).split()[0]
    'model.recompute_granularity=null'
    """
    return _join((*_recompute(setting), *_offload(setting)))


def _recompute(setting: RecomputeSetting) -> Iterator[str]:
    modules = ",".join(setting.effective_modules)
    if setting.granularity is Granularity.FULL:
        yield "recompute_granularity=full"
        yield f"recompute_method={setting.method}"
        yield f"recompute_num_layers={setting.num_layers}"
    else:
        yield f"recompute_granularity={'selective' if modules else 'null'}"
        yield f"recompute_modules=[{modules}]"
        yield from ("recompute_method=null", "recompute_num_layers=null")
    if setting.distribute_saved_activations:
        yield "distribute_saved_activations=true"


def _offload(setting: RecomputeSetting) -> Iterator[str]:
    if setting.offload_modules:
        yield "fine_grained_activation_offloading=true"
        yield f"offload_modules=[{','.join(setting.offload_modules)}]"
    if setting.cpu_offloading_num_layers:
        yield "cpu_offloading=true"
        yield "cpu_offloading_weights=false"
        yield f"cpu_offloading_num_layers={setting.cpu_offloading_num_layers}"


def bridge_layout_overrides(job: Job, revision: Revision) -> str:
    """Overrides for the layout, batch, precision and CUDA graphs of the job.

    Two things are left to the recipe: the sequence length, which stands in the model and in the
    data set, whose field differs by recipe; and the type of the gradient buffer, which the named
    mixed_precision overwrites at validation.
    """
    return shlex.join((*(f"model.{part}" for part in _model(job, revision)), *_run(job)))


def _model(job: Job, revision: Revision) -> Iterator[str]:
    layout = job.layout
    vpp = layout.virtual_pipeline_model_parallel_size
    yield f"tensor_model_parallel_size={layout.tensor_model_parallel_size}"
    yield f"sequence_parallel={_yaml(layout.sequence_parallel)}"
    yield f"context_parallel_size={layout.context_parallel_size}"
    if layout.context_parallel_size > 1:
        yield f"cp_comm_type={layout.cp_comm_type}"
    if layout.hierarchical_context_parallel_sizes:
        sizes = ",".join(map(str, layout.hierarchical_context_parallel_sizes))
        yield f"hierarchical_context_parallel_sizes=[{sizes}]"
    yield f"pipeline_model_parallel_size={layout.pipeline_model_parallel_size}"
    yield f"virtual_pipeline_model_parallel_size={vpp if vpp > 1 else 'null'}"
    yield from (f"{name}={value}" for name, value in uneven_split(layout).items())
    yield from expert_overrides(job.model, layout)
    yield from attention_overrides(job.model)
    impl, modules = job.config.cuda_graph_impl, job.config.cuda_graph_modules
    if impl is CudaGraphImpl.FULL_ITERATION and str(impl) not in revision.cuda_graph_impls:
        impl, modules = CudaGraphImpl.LOCAL, ("full_iteration",)
    yield f"cuda_graph_impl={impl}"
    if impl is not CudaGraphImpl.NONE:
        yield f"{revision.cuda_graph_field}=[{','.join(modules)}]"


def uneven_split(layout: ParallelLayout) -> dict[str, str]:
    """Fields of TransformerConfig that split the layers unevenly, those that are set; the text in
    quotes, whose parentheses mean something else to Hydra."""
    values = {
        name: getattr(layout, name) for name, even in EVEN.items() if getattr(layout, name) != even
    }
    return {
        name: f'"{value}"' if isinstance(value, str) else str(value).lower()
        for name, value in values.items()
    }


def _run(job: Job) -> Iterator[str]:
    layout, config = job.layout, job.config
    yield f"train.micro_batch_size={config.micro_batch_size}"
    yield f"train.global_batch_size={config.global_batch_size}"
    if not config.optimizer.is_muon:
        yield f"ddp.use_distributed_optimizer={_yaml(layout.use_distributed_optimizer)}"
    yield from muon_overrides(job)
    yield f"mixed_precision={_MIXED_PRECISION[config.precision]}"
    yield from _loss(job)


def _loss(job: Job) -> Iterator[str]:
    fusion = job.model.cross_entropy_fusion
    if fusion is not CrossEntropyFusion.NONE:
        yield "model.cross_entropy_loss_fusion=true"
        yield f"model.cross_entropy_fusion_impl={fusion}"


def assumed_overrides(job: Job) -> str:
    """What a prediction rests on beside degrees and batch. The type of the gradients is not among
    them: Bridge takes it from the recipe's mixed_precision when it validates."""
    parts = [*muon_overrides(job), *_loss(job)]
    if job.config.precision is not Precision.BF16:
        parts.insert(0, f"mixed_precision={_MIXED_PRECISION[job.config.precision]}")
    return shlex.join(parts)


def _yaml(value: bool) -> str:
    return "true" if value else "false"


def _join(parts: tuple[str, ...]) -> str:
    return shlex.join(f"model.{part}" for part in parts)
