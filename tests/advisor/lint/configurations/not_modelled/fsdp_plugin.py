from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=1,
    sharding_strategy="FULL_SHARD",
    cpu_offload=True,
    use_orig_params=True,
    limit_all_gathers=False,
    activation_checkpointing=True,
    auto_wrap_policy="size_based_wrap",
    min_num_params=100000000,
)
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin, gradient_accumulation_steps=4)
