"""Options of the optimizer and of data parallelism."""

from typing import Final

from msgspec.structs import replace

from advisor.frameworks.megatron.options.values import (
    FSDP_STRATEGIES,
    deals_whole_tensors,
    emitted_where,
    fsdp_gradients,
    fsdp_strategy,
    gathers_meanwhile,
    is_not_muon,
    runs_fsdp,
    torch_type,
    with_fsdp,
)
from advisor.frameworks.option import (
    DIFFERENT,
    EMITTED,
    ON_LINE,
    Emitted,
    Options,
    When,
    harmless,
    option,
    refused,
    unpriced,
)

_NUMBER: Final = "a coefficient of the optimizer's update"
_SCALE: Final = "a parameter of the loss scale"
_MUON: Final = "a coefficient of Muon's update"
_OTHER: Final = "belongs to an optimizer that is not modelled"
_HOST: Final = "host memory only"
_FSDP: Final = emitted_where(runs_fsdp)
_WITH_FSDP: Final = "used only with use_megatron_fsdp"
_FSDP_POOL: Final = "double buffers of Megatron-FSDP are modelled as allocated by default"
_BUCKETS: Final = "gradients are modelled in buckets of Megatron's default size"
_RUN: Final = Emitted(line=DIFFERENT, recipe=When(always=True, only_if=is_not_muon))


class OptimizerStep(Options, title="Optimizer", home="optimizer"):
    """Options of the optimizer's update; the types of its tensors are in Precision."""

    optimizer: str = option("adam", "job", ON_LINE, means=str.lower)
    use_layer_wise_param_layout: bool = option(
        True, "job.optimizer", ON_LINE, value=deals_whole_tensors, since="0.18", bridge=""
    )
    lr: float | None = harmless(None, _NUMBER)
    min_lr: float | None = harmless(None, _NUMBER)
    decoupled_lr: float | None = harmless(None, _NUMBER)
    decoupled_min_lr: float | None = harmless(None, _NUMBER)
    weight_decay: float = harmless(0.01, _NUMBER)
    apply_wd_to_qk_layernorm: bool = harmless(False, _NUMBER, since="0.16")
    decoupled_weight_decay: bool = harmless(True, _NUMBER, flag="", since="0.15")
    adam_beta1: float = harmless(0.9, _NUMBER)
    adam_beta2: float = harmless(0.999, _NUMBER)
    adam_eps: float = harmless(1e-08, _NUMBER)
    sgd_momentum: float = harmless(0.9, _OTHER)
    clip_grad: float = unpriced(
        1.0, "every step is modelled with the computation of the gradient norm"
    )
    loss_scale: float | None = harmless(None, _SCALE)
    initial_loss_scale: float = harmless(4294967296, _SCALE)
    min_loss_scale: float = harmless(1.0, _SCALE)
    loss_scale_window: float = harmless(1000, _SCALE)
    hysteresis: int = harmless(2, _SCALE)
    grad_norm_skip_threshold: float = harmless(float("inf"), since="0.18")
    muon_momentum: float = harmless(0.95, _MUON, launcher=0.9, since="0.16")
    muon_split_qkv: bool = unpriced(
        True,
        "the q, k and v matrices are modelled as orthogonalized separately",
        off="--muon-no-split-qkv",
        since="0.16",
    )
    muon_use_nesterov: bool = harmless(False, _MUON, since="0.16", until="0.17")
    muon_nesterov: bool = harmless(False, _MUON, since="0.18")
    muon_scale_mode: str = harmless("spectral", _MUON, since="0.16")
    muon_fp32_matmul_prec: str = harmless("medium", _MUON, since="0.16")
    muon_coefficient_type: str = harmless("quintic", _MUON, since="0.17")
    muon_num_ns_steps: int = unpriced(
        5, "the update is modelled with five Newton-Schulz steps", since="0.16"
    )
    muon_tp_mode: str = unpriced(
        "blockwise",
        "each TP shard of a matrix is modelled as orthogonalized by itself",
        since="0.16",
    )
    muon_extra_scale_factor: float = harmless(1.0, _MUON, since="0.16")
    muon_scalar_optimizer: str = refused(
        "adam", "only Adam is modelled for the parameters that Muon does not update", since="0.17"
    )
    lion_beta1: float = harmless(0.95, _OTHER, since="0.17")
    lion_beta2: float = harmless(0.98, _OTHER, since="0.17")
    soap_shampoo_beta: float = harmless(0.95, _OTHER, since="0.18")
    soap_precondition_frequency: int = harmless(1, _OTHER, since="0.18")
    soap_use_kl_shampoo: bool = harmless(True, _OTHER, since="0.18")
    adaptive_muon_moment2_method: str = harmless("adamuon", _OTHER, since="0.18")
    adaptive_muon_beta2: float = harmless(0.95, _OTHER, since="0.18")
    adaptive_muon_eps: float = harmless(1e-08, _OTHER, since="0.18")
    use_layer_wise_distributed_optimizer: bool = unpriced(
        False, "follows from job.optimizer", flag="", since="0.18"
    )
    optimizer_cuda_graph: bool = unpriced(
        False, "the update is modelled without CUDA graphs", since="0.17"
    )
    use_torch_optimizer_for_cpu_offload: bool = unpriced(
        False, "the update on the host is modelled like DeepSpeed's CPU Adam", since="0.12"
    )
    pin_cpu_grads: bool = harmless(True, _HOST, since="0.12")
    pin_cpu_params: bool = harmless(True, _HOST, since="0.12")
    log_num_zeros_in_grad: bool = unpriced(False, "the counting of zero gradients is not modelled")
    overlap_param_gather_with_optimizer_step: bool = unpriced(
        False, "weights are modelled as gathered after the optimizer step"
    )


class DataParallel(Options, title="Data parallelism", home="ddp"):
    """Options of DistributedDataParallelConfig and of what shards over data-parallel ranks."""

    use_distributed_optimizer: bool = option(False, "layout", _RUN)
    overlap_grad_reduce: bool = option(False, "layout", _RUN)
    overlap_param_gather: bool = option(
        False, "layout", _RUN, value=gathers_meanwhile, means=bool, recipe=When(only_if=is_not_muon)
    )
    align_param_gather: bool = harmless(False, "", flag="", off="--no-align-param-gather")
    num_distributed_optimizer_instances: int = option(
        1, "layout.data_parallel_replicate_size", EMITTED
    )
    check_for_nan_in_grad: bool = harmless(False, "adds a check per gradient bucket", flag="")
    check_for_large_grads: bool = harmless(False, "adds a check per gradient bucket", since="0.12")
    bucket_size: int | None = unpriced(None, _BUCKETS, flag="--ddp-bucket-size")
    num_buckets: int | None = unpriced(None, _BUCKETS, flag="--ddp-num-buckets", since="0.18")
    pad_buckets_for_high_nccl_busbw: bool = harmless(
        False, "", flag="--ddp-pad-buckets-for-high-nccl-busbw", since="0.12"
    )
    reduce_scatter_with_fp32_accumulation: bool = unpriced(
        False,
        "gradients are modelled as reduced in their own type",
        flag="--ddp-reduce-scatter-with-fp32-accumulation",
        since="0.16",
    )
    param_name_patterns_for_fp32_local_accumulation: tuple[str, ...] = unpriced(
        (),
        "gradients are modelled in one type",
        flag="--ddp-param-name-patterns-for-fp32-local-accumulation",
        since="0.17",
    )
    average_in_collective: bool = harmless(False, "", flag="--ddp-average-in-collective")
    gradient_reduce_div_fusion: bool = harmless(True, since="0.12")
    nccl_ub: bool = unpriced(
        False, "buffers registered with NCCL are not modelled", flag="--use-nccl-ub", since="0.13"
    )
    disable_symmetric_registration: bool = harmless(False, "used only with nccl_ub", since="0.14")
    use_megatron_fsdp: bool = option(
        False,
        "layout.data_parallel_sharding",
        _FSDP,
        value=with_fsdp(runs_fsdp),
        strict=True,
        since="0.14",
    )
    use_custom_fsdp: bool = refused(False, "an old name of use_megatron_fsdp", since="0.12")
    use_torch_fsdp2: bool = refused(
        False, "torch's FSDP2 under Megatron is not modelled", bridge="dist"
    )
    data_parallel_sharding_strategy: str = option(
        "no_shard",
        "layout.data_parallel_sharding",
        _FSDP,
        launcher="optim_grads_params",
        value=fsdp_strategy("data_parallel_sharding"),
        since="0.12",
    )
    outer_dp_sharding_strategy: str = option(
        "no_shard",
        "layout",
        _FSDP,
        value=fsdp_strategy("outer_dp_sharding_strategy"),
        means=FSDP_STRATEGIES,
        since="0.14",
    )
    ckpt_format: str = option(
        "torch_dist",
        "layout.data_parallel_sharding",
        _FSDP,
        value=with_fsdp(lambda _: "fsdp_dtensor"),  # the one format that it takes
        bridge="checkpoint",
    )
    suggested_communication_unit_size: int | None = unpriced(
        None, "what Megatron-FSDP gathers ahead is modelled by its default", since="0.12"
    )
    preserve_fp32_weights: bool = harmless(True, _WITH_FSDP, since="0.12", until="0.16")
    fsdp_double_buffer: bool = option(False, "layout.double_buffers", _FSDP, since="0.13")
    fsdp_manual_registration: bool = harmless(False, _WITH_FSDP, since="0.16")
    fsdp_db_use_persist_buf_on_alloc_fail: bool = unpriced(False, _FSDP_POOL, since="0.17")
    fsdp_all_gather_in_start_param_sync: bool = harmless(True, _WITH_FSDP, since="0.17")
    megatron_fsdp_main_params_dtype: str = unpriced(
        "fp32", "main parameters of Megatron-FSDP are modelled in fp32", since="0.17"
    )
    megatron_fsdp_main_grads_dtype: str | None = option(
        None,
        "job.main_grads_dtype",
        replace(_FSDP, recipe_value=torch_type("main_grads_dtype")),
        launcher="auto",
        value=fsdp_gradients,
        since="0.17",
    )
    megatron_fsdp_grad_comm_dtype: str | None = unpriced(
        None, "gradients are modelled as reduced in their own type", launcher="auto", since="0.17"
    )
    megatron_fsdp_use_decoupled_grad: bool = harmless(False, _WITH_FSDP, since="0.18")
    megatron_fsdp_cuda_graph_mode: bool = harmless(False, _WITH_FSDP, since="0.18")
    megatron_fsdp_enable_fine_grained_param_gather: bool = harmless(False, _WITH_FSDP, since="0.18")
    megatron_fsdp_max_pool_double_buffer: bool = unpriced(False, _FSDP_POOL, since="0.19")
    enable_full_sharding_in_hsdp: bool = harmless(False, _WITH_FSDP)
    create_all_gather_group: bool = unpriced(
        False, "a separate process group for all-gathers is not modelled"
    )
    torch_fsdp2_reshard_after_forward: bool = harmless(
        True, "used only with use_torch_fsdp2", off="--torch-fsdp2-no-reshard-after-forward"
    )
    align_grad_reduce: bool = harmless(True, "")
