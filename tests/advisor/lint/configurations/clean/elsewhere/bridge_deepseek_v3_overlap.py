from megatron.bridge.recipes.deepseek.deepseek_v3 import deepseek_v3_pretrain_config
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain

cfg = deepseek_v3_pretrain_config()
cfg.model.recompute_granularity = "selective"
cfg.model.recompute_modules = ["mla_up_proj", "moe_act"]
cfg.comm_overlap.overlap_moe_expert_parallel_comm = True
cfg.comm_overlap.delay_wgrad_compute = True
cfg.model.overlap_moe_expert_parallel_comm = True
cfg.model.moe_shared_expert_overlap = False
cfg.train.train_iters = 100
pretrain(cfg, forward_step)
