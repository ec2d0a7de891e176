from megatron.bridge.recipes.llama import llama3_70b_pretrain_config
from megatron.bridge.training.pretrain import pretrain

cfg = llama3_70b_pretrain_config()
cfg.model.sequence_parallel = True
cfg.model.tensor_model_parallel_size = 4
cfg.model.recompute_granularity = "full"
cfg.model.recompute_method = "uniform"
cfg.model.recompute_num_layers = 1
cfg.model.distribute_saved_activations = True
pretrain(cfg)
