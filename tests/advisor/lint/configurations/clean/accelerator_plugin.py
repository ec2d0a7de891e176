import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from transformers import AutoModelForCausalLM

fsdp_plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    reshard_after_forward=True,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    state_dict_type="SHARDED_STATE_DICT",
    activation_checkpointing=True,
    cpu_ram_efficient_loading=True,
)
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=fsdp_plugin, log_with="wandb")
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", dtype=torch.float32)
