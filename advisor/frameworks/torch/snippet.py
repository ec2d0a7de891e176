"""Python that applies a setting and FSDP2 to a model whose transformer blocks are `blocks`.

Order: checkpoints first, then compile, then fully_shard (torchtitan, accelerate). Names are those
of torch, torch.utils.checkpoint, torch.distributed.fsdp and checkpoint_wrapper.
"""

from typing import Final

from advisor.frameworks.torch.setting import Granularity, OpPolicy, TorchSetting
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding

_MATMULS: Final = ("torch.ops.aten.mm.default", "torch.ops.aten.addmm.default")
_ATTENTION: Final = tuple(
    f"torch.ops.aten._scaled_dot_product_{kernel}_attention.default"
    for kernel in ("flash", "efficient", "cudnn")
)


def snippet(setting: TorchSetting, job: Job) -> str:
    """Statements joined by semicolons: the checkpoints, if any, and the sharding."""
    return "; ".join(part for part in (_checkpoints(setting), _sharding(job)) if part)


def _checkpoints(setting: TorchSetting) -> str:
    match setting.granularity:
        case Granularity.FULL:
            return _wrapped("blocks", setting)
        case Granularity.SELECTIVE:
            n = setting.num_layers or 1
            return _wrapped(f"blocks[{n - 1}::{n}]", setting)
        case Granularity.SEQUENTIAL:
            reentrant = bool(setting.use_reentrant)
            return (
                f"hidden = checkpoint_sequential(blocks, {setting.segments}, hidden, "
                f"use_reentrant={reentrant})"
            )
        case Granularity.OP:
            return _wrapped("blocks", setting)
        case Granularity.BUDGET:
            fraction = f"{setting.budget:g}"
            return (
                f"torch._functorch.config.activation_memory_budget = {fraction}; "
                "[block.compile() for block in model.layers]"
            )
    return ""


def _wrapped(blocks: str, setting: TorchSetting) -> str:
    options = ""
    if setting.use_reentrant:
        options = ", checkpoint_impl=CheckpointImpl.REENTRANT"
    if setting.policy is not None:
        kept = _ATTENTION if setting.policy is OpPolicy.SAVE_ATTENTION else _MATMULS
        listed = f"partial(create_selective_checkpoint_contexts, [{', '.join(kept)}])"
        options = f", context_fn={listed}"
    wrapper = f"checkpoint_wrapper_fn=partial(checkpoint_wrapper{options}), " if options else ""
    if setting.offloads:
        around = f"offload_wrapper(checkpoint_wrapper(module{options}))"
        wrapper = f"checkpoint_wrapper_fn=lambda module: {around}, "
    check = f"check_fn=lambda module: module in {blocks}"
    return f"apply_activation_checkpointing(model, {wrapper}{check})"


def _sharding(job: Job) -> str:
    """After the wrapping the blocks are found again by the wrapper around them, if there is one."""
    if job.num_gpus == 1:
        return ""
    reshards = job.layout.data_parallel_sharding is DataParallelSharding.FULL
    policy = f"MixedPrecisionPolicy(torch.bfloat16, torch.{job.config.main_grads_dtype})"
    return (
        f"[fully_shard(module, mp_policy={policy}, reshard_after_forward={reshards}) "
        "for module in (*model.layers, model)]"
    )
