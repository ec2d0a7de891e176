from megatron.bridge.recipes.gemma import gemma2_9b_pretrain_config
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.gpt_step import forward_step

config = gemma2_9b_pretrain_config(dir="/nemo_run", name="g2", train_iters=100, global_batch_size=64, micro_batch_size=1)
config.model.recompute_granularity = None
config.model.tensor_model_parallel_size = 4
pretrain(config=config, forward_step_func=forward_step)
