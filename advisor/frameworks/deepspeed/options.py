"""Keys of DeepSpeed's JSON configuration (0.19.8), and of older releases where it passes them over.

Source: runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/activation_checkpointing/config.py.
"""

from typing import Final

from advisor.frameworks.option import Option, Status, key, keys
from advisor.job.layout import DataParallelSharding

AC: Final = "activation_checkpointing"
ZERO: Final = "zero_optimization"
PARAMETERS: Final = f"{ZERO}.offload_param"
OPTIMIZER: Final = f"{ZERO}.offload_optimizer"
STAGE: Final = f"{ZERO}.stage"
MICRO_BATCH: Final = "train_micro_batch_size_per_gpu"
BATCH: Final = "train_batch_size"
STEPS: Final = "gradient_accumulation_steps"
SEQUENCE: Final = "sequence_parallel_size"
INTERVAL: Final = "pipeline.activation_checkpoint_interval"
SHARDINGS: Final[dict[int | None, DataParallelSharding]] = {
    0: DataParallelSharding.NONE,
    1: DataParallelSharding.OPTIMIZER,
    2: DataParallelSharding.GRADIENTS,
    3: DataParallelSharding.FULL,
}
_ON_HOST: Final = {"cpu": True}
_SWITCHES: Final = {
    **dict.fromkeys(("contiguous_gradients", "reduce_scatter", "allgather_partitions"), True),
    **dict.fromkeys(("overlap_comm", "memory_efficient_linear"), True),
}
"""Where predictions are for a switch that is on; overlap_comm is in stage 3 by default."""
_SIZES: Final = {
    **dict.fromkeys(("reduce_bucket_size", "allgather_bucket_size"), 500_000_000),
    "sub_group_size": 1_000_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "zero_hpz_partition_size": 1,
}
"""DeepSpeed's defaults (0.19.8 runtime/zero/config.py)."""
_DEFAULT: Final = "predicted at its default"
_ZERO_SWITCHES: Final = {
    _DEFAULT: """
        contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions
        overlap_comm ignore_unused_parameters round_robin_gradients use_all_reduce_for_fetch_params
        stage3_use_all_reduce_for_fetch_params allgather_sequential stage3_allgather_sequential
        memory_efficient_linear legacy_stage1 compute_grad_norm parameter_alignment
    """,
    "quantized weights and gradients, and Muon, are not modelled": """
        zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients
        save_muon_momentum_buffer_in_memory
    """,
    "deprecated keys of offload, not read": """
        cpu_offload_param cpu_offload_use_pin_memory cpu_offload
    """,
}
_ZERO_SAVING: Final = """
    load_from_fp32_weights elastic_checkpoint gather_16bit_weights_on_model_save
    stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save
    pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings enable_sanity_checks
"""
_ZERO_SIZES: Final = """
    reduce_bucket_size allgather_bucket_size sub_group_size prefetch_bucket_size
    stage3_prefetch_bucket_size param_persistence_threshold stage3_param_persistence_threshold
    model_persistence_threshold stage3_model_persistence_threshold max_live_parameters
    stage3_max_live_parameters max_reuse_distance stage3_max_reuse_distance
    module_granularity_threshold stage3_module_granularity_threshold zero_hpz_partition_size
"""
_OFFLOADED_OPTIMIZER: Final = """
    buffer_count pin_memory pipeline_read pipeline_write pipeline fast_init super_offload
    cpuadam_cores_perc
"""
_NOT_MODELLED: Final = """
    optimizer bfloat16 amp data_types torch_autocast gradient_clipping gradient_predivide_factor
    prescale_gradients communication_data_type gradient_allreduce_op sparse_gradients aio
    compression_training data_efficiency elasticity zero_force_ds_cpu_optimizer tensor_parallel
    compile hybrid_engine seq_parallel_communication_data_type curriculum_learning sparse_attention
    eigenvalue progressive_layer_drop graph_harvesting disable_allgather weight_quantization
"""
_LOGGING: Final = """
    scheduler steps_per_print wall_clock_breakdown dump_state memory_breakdown flops_profiler
    comms_logger tensorboard wandb csv_monitor comet autotuning checkpoint
    zero_allow_untested_optimizer load_universal_checkpoint use_node_local_storage timers
    use_data_before_expert_parallel_
"""
OPTIONS: Final[tuple[Option, ...]] = (
    key(MICRO_BATCH, None, "job.micro_batch_size", kind=int),
    key(BATCH, None, "job.global_batch_size", kind=int),
    key(SEQUENCE, 1, "layout.context_parallel_size"),
    key("pipeline.stages", "auto", "layout.pipeline_model_parallel_size", kind=int),
    key(INTERVAL, 0, "recompute"),
    key(STAGE, 0, "layout.data_parallel_sharding", kind=object, means=SHARDINGS),
    key(f"{OPTIMIZER}.device", "none", "job.optimizer_cpu_offload", means=_ON_HOST),
    key(f"{PARAMETERS}.device", "none", "job.param_cpu_offload", means=_ON_HOST),
    key("fp16.enabled", False, "job.precision", means={True: "fp16"}),
    key("bf16.enabled", False, "job.precision", means={True: "bf16"}),
    key(f"{AC}.partition_activations", False, "recompute"),
    key(f"{AC}.number_checkpoints", None, "recompute", kind=int),
    key(f"{AC}.contiguous_memory_optimization", False, "recompute"),
    key(f"{AC}.cpu_checkpointing", False, "recompute"),
    key(f"{AC}.synchronize_checkpoint_boundary", False, "recompute"),
    key(f"{AC}.profile", False, "recompute"),
    key(f"{OPTIMIZER}.ratio", 1.0, "job.optimizer_offload_fraction"),
    *keys(Status.UNPRICED, ZERO, _ZERO_SWITCHES, kind=bool, predicted=_SWITCHES),
    *keys(Status.HARMLESS, ZERO, {"saving, loading and checking": _ZERO_SAVING}, kind=bool),
    *keys(Status.UNPRICED, ZERO, {_DEFAULT: _ZERO_SIZES}, kind=int, predicted=_SIZES),
    *keys(Status.UNPRICED, ZERO, {"not modelled": "zenflow leaf_module"}),
    *keys(Status.CHECKED, PARAMETERS, {"offload to NVMe is not modelled": "nvme_path"}),
    *keys(
        Status.UNPRICED,
        PARAMETERS,
        {_DEFAULT: "buffer_count buffer_size max_in_cpu pin_memory"},
        predicted={"pin_memory": True, "buffer_count": 5, "buffer_size": 100_000_000},
    ),
    *keys(Status.CHECKED, OPTIMIZER, {"offload to NVMe is not modelled": "nvme_path"}),
    *keys(
        Status.UNPRICED,
        OPTIMIZER,
        {_DEFAULT: _OFFLOADED_OPTIMIZER},
        predicted={"pin_memory": True, "buffer_count": 4},
    ),
    *keys(Status.CHECKED, "", {"follows from the two batch sizes": STEPS}),
    *keys(Status.UNPRICED, "", {"not modelled": _NOT_MODELLED}),
    *keys(Status.HARMLESS, "", {"logging, saving and loading": _LOGGING}),
)
REMOVED: Final = {"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"}
"""Keys of zero_optimization that 0.19.8 has no more."""
