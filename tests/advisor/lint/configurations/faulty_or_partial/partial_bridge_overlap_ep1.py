from megatron.bridge.recipes.deepseek import deepseek_v3_pretrain_config
from megatron.bridge.training.pretrain import pretrain

cfg = deepseek_v3_pretrain_config()
cfg.model.expert_model_parallel_size = 1
cfg.model.overlap_moe_expert_parallel_comm = True
cfg.model.moe_shared_expert_overlap = False
pretrain(cfg)
