from megatron.bridge.recipes.llama import llama3_8b_pretrain_config
from megatron.bridge.training.pretrain import pretrain

cfg = llama3_8b_pretrain_config()
cfg.model.recompute_granularity = "selective"
cfg.model.recompute_modules = ["moe_act"]
pretrain(cfg)
