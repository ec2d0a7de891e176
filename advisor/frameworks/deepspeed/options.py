"""Keys of DeepSpeed's JSON configuration (0.19.8), and of older releases where it passes them over.

Source: runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/activation_checkpointing/config.py.
"""

from typing import Final

from advisor.frameworks.option import listed, modelled
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
OPTIONS: Final = (*modelled("deepspeed"), *listed("deepspeed"))
REMOVED: Final = {"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"}
"""Keys of zero_optimization that 0.19.8 has no more."""
