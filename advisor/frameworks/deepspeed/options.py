"""Keys of DeepSpeed's JSON configuration (0.19.8), and of older releases where it passes them over.

Source: runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/activation_checkpointing/config.py.
"""

from typing import Final

from advisor.frameworks.option import Option, key, listed
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
    key("bfloat16.enabled", False, "job.precision", means={True: "bf16"}),
    key(f"{AC}.partition_activations", False, "recompute"),
    key(f"{AC}.number_checkpoints", None, "recompute", kind=int),
    key(f"{AC}.contiguous_memory_optimization", False, "recompute"),
    key(f"{AC}.cpu_checkpointing", False, "recompute"),
    key(f"{AC}.synchronize_checkpoint_boundary", False, "recompute"),
    key(f"{AC}.profile", False, "recompute"),
    key(f"{OPTIMIZER}.ratio", 1.0, "job.optimizer_offload_fraction"),
    *listed("deepspeed"),
)
REMOVED: Final = {"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"}
"""Keys of zero_optimization that 0.19.8 has no more."""
