"""Python that applies a setting and its job to a model whose transformer blocks are `blocks`.

Order: checkpoints first, then compile, then fully_shard (torchtitan, accelerate). Names are those
of torch, torch.utils.checkpoint, torch.distributed.fsdp, its wrap, torch.distributed.optim,
checkpoint_wrapper, device_mesh and tensor.experimental (context_parallel); apply_plan is that of
recompute_plan.py, which ``--format file`` prints.
"""

from typing import Final

from advisor.frameworks.torch.setting import Granularity, OpPolicy, TorchSetting
from advisor.job.job import AttnImplementation, Job, Optimizer, OptimizerImplementation
from advisor.job.layout import DataParallelSharding
from advisor.models.options import CpCommType, TransformerImpl

_KERNELS: Final = {
    OptimizerImplementation.FUSED: ("fused", True),
    OptimizerImplementation.FOREACH: ("foreach", True),
    OptimizerImplementation.FOR_LOOP: ("foreach", False),
}
_QUANTIZED: Final = {
    Optimizer.BITSANDBYTES_8BIT: "bitsandbytes.optim.AdamW8bit",
    Optimizer.PAGED_32BIT: "bitsandbytes.optim.PagedAdamW32bit",
    Optimizer.PAGED_8BIT: "bitsandbytes.optim.PagedAdamW8bit",
    Optimizer.TORCHAO_8BIT: "torchao.optim.AdamW8bit",
    Optimizer.TORCHAO_4BIT: "torchao.optim.AdamW4bit",
}
_COMPILE: Final = "[block.compile() for block in model.layers]"
_MATMULS: Final = ("torch.ops.aten.mm.default", "torch.ops.aten.addmm.default")
_ROTATES: Final = {"allgather": CpCommType.ALL_GATHER, "alltoall": CpCommType.P2P}
_ATTENTION: Final = tuple(
    f"torch.ops.aten._scaled_dot_product_{kernel}_attention.default"
    for kernel in ("flash", "efficient", "cudnn")
)


def snippet(setting: TorchSetting, job: Job) -> str:
    """Statements joined by semicolons: those that the setting and the job need."""
    parts = (
        _ranks(job),
        _weights(job),
        _attention(job),
        _checkpoints(setting),
        _compiled(setting, job),
        _sharding(job),
        _optimizer(job),
    )
    return "; ".join(part for part in parts if part)


def _weights(job: Job) -> str:
    """The type between steps, where it is not the one that they are loaded in; Liger's kernels in
    place of transformers' (liger_kernel.transformers); linear layers except the output in 8 bits
    (torchao.float8)."""
    config, parts = job.config, []
    if config.weights_dtype is not None:
        parts.append(f"model.to(torch.{config.weights_dtype})")
    if config.use_liger_kernel:
        parts.append("_apply_liger_kernel_to_instance(model=model)")
    if config.precision.is_quantized:
        gathers = f"enable_fsdp_float8_all_gather={config.fp8_param_gather}"
        parts.append(
            f"convert_to_float8_training(model, config=Float8LinearConfig({gathers}), "
            'module_filter_fn=lambda _, name: name not in ("output", "lm_head"))'
        )
    return "; ".join(parts)


def _optimizer(job: Job) -> str:
    """Adam where it is not the usual fused one; `lr` is the program's. In the backward each weight
    has one of its own (torch.distributed.optim)."""
    config = job.config
    name, value = _KERNELS[config.optimizer_implementation]
    if config.optimizer_in_backward:
        options = f'{{"lr": lr, "{name}": {value}}}'
        adam = "torch.optim.AdamW, model.parameters()"
        return f"_apply_optimizer_in_backward({adam}, {options})"
    if config.optimizer.is_quantized:
        return f"optimizer = {_QUANTIZED[config.optimizer]}(model.parameters(), lr=lr)"
    if config.optimizer_implementation is OptimizerImplementation.FUSED:
        return ""
    return f"optimizer = torch.optim.AdamW(model.parameters(), lr=lr, {name}={value})"


def _ranks(job: Job) -> str:
    """Ranks in two dimensions: replicas and their shards; or data and context parallelism, with
    what each step is to run within, and the tensors that it cuts."""
    layout, replicas = job.layout, job.layout.data_parallel_replicate_size
    if replicas > 1:
        sizes, names = f"({replicas}, {layout.sharding_ranks})", '("replicas", "shards")'
        return f'both = init_device_mesh("cuda", {sizes}, mesh_dim_names={names})'
    if layout.context_parallel_size == 1:
        return ""
    (method,) = (name for name, kind in _ROTATES.items() if kind is layout.cp_comm_type)
    sizes = f"({layout.data_parallel_size}, {layout.context_parallel_size})"
    return (
        f'mesh = init_device_mesh("cuda", {sizes}, mesh_dim_names=("dp", "cp")); '
        'both = mesh["dp", "cp"]._flatten("dp_cp"); '
        f'set_rotate_method("{method}"); '
        'around_step = partial(context_parallel, mesh["cp"], buffers=[tokens, labels], '
        "buffer_seq_dims=[1, 1])"
    )


def _attention(job: Job) -> str:
    """transformers' own default is sdpa (PreTrainedModel.set_attn_implementation, from 4.54 on)."""
    kernel = job.config.attn_implementation
    chosen = job.model.transformer_impl is TransformerImpl.TRANSFORMERS
    if not chosen or kernel is AttnImplementation.SDPA:
        return ""
    return f'model.set_attn_implementation("{kernel}")'


def _compiled(setting: TorchSetting, job: Job) -> str:
    """Block by block, with the checkpoints around them; a budget compiles them itself."""
    compiled = job.config.torch_compile and setting.granularity is not Granularity.BUDGET
    return _COMPILE if compiled else ""


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
                f"run_blocks = lambda hidden: checkpoint_sequential(blocks, {setting.segments}, "
                f"hidden, use_reentrant={reentrant})"
            )
        case Granularity.OP:
            return _wrapped("blocks", setting)
        case Granularity.BLOCKS:
            return "apply_plan(model.layers)"
        case Granularity.BUDGET:
            fraction = f"{setting.budget:g}"
            return f"torch._functorch.config.activation_memory_budget = {fraction}; {_COMPILE}"
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
        around = f"offload_wrapper(checkpoint_wrapper(m{options}))"
        wrapper = f"checkpoint_wrapper_fn=lambda m: {around}, "
    check = f"check_fn=lambda module: module in {blocks}"
    return f"apply_activation_checkpointing(model, {wrapper}{check})"


def _sharding(job: Job) -> str:
    """After the wrapping the blocks are found again by the wrapper around them, if there is one."""
    if job.num_gpus == 1:
        return ""
    reshards = job.layout.data_parallel_sharding is DataParallelSharding.FULL
    if job.config.flat_parameters:
        return _flat_sharding(job, reshards)
    layout = job.layout
    several = max(layout.context_parallel_size, layout.data_parallel_replicate_size) > 1
    mesh = ", mesh=both" if several else ""
    policy = f"MixedPrecisionPolicy(torch.bfloat16, torch.{job.config.main_grads_dtype})"
    return (
        f"[fully_shard(module{mesh}, mp_policy={policy}, reshard_after_forward={reshards}) "
        "for module in (*model.layers, model)]"
    )


def _flat_sharding(job: Job, reshards: bool) -> str:
    """FSDP1: flat parameters of each block and of the rest."""
    strategy, mesh = "FULL_SHARD" if reshards else "SHARD_GRAD_OP", ""
    if job.layout.data_parallel_replicate_size > 1:
        strategy = "HYBRID_SHARD" if reshards else "_HYBRID_SHARD_ZERO2"
        mesh = ", device_mesh=both"
    types = f"param_dtype=torch.bfloat16, reduce_dtype=torch.{job.config.main_grads_dtype}"
    return (
        "model = FullyShardedDataParallel(model, "
        "auto_wrap_policy=CustomPolicy(lambda module: module in [*model.layers]), "
        f"mixed_precision=MixedPrecision({types}), "
        f"sharding_strategy=ShardingStrategy.{strategy}, use_orig_params=True{mesh})"
    )
