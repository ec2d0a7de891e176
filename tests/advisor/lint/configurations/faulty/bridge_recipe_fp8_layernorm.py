from megatron.bridge.recipes.qwen import qwen3_30b_a3b_pretrain_config
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain

cfg = qwen3_30b_a3b_pretrain_config()
cfg.mixed_precision = "bf16_with_fp8_delayed_scaling_mixed"
cfg.model.num_moe_experts = 128
cfg.model.recompute_granularity = "selective"
cfg.model.recompute_modules = ["layernorm", "moe_act"]
pretrain(config=cfg, forward_step_func=forward_step)
