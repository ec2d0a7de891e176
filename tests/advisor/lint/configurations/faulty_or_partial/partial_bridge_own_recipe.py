from acme.recipes import acme_80b_config
from megatron.bridge.training.pretrain import pretrain

cfg = acme_80b_config()
cfg.model.recompute_granularity = "selective"
cfg.model.recompute_modules = ["core_attn", "mlp"]
cfg.model.recompute_num_layers = 4
pretrain(cfg)
