import argparse
from megatron.bridge.recipes.qwen import qwen3_30b_a3b_pretrain_config
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain

p = argparse.ArgumentParser()
p.add_argument("--tp", type=int)
p.add_argument("--pp", type=int)
p.add_argument("--ep", type=int)
p.add_argument("--recompute", choices=["full", "selective"])
p.add_argument("--layers", type=int)
args = p.parse_args()

cfg = qwen3_30b_a3b_pretrain_config()
cfg.model.tensor_model_parallel_size = args.tp
cfg.model.pipeline_model_parallel_size = args.pp
cfg.model.expert_model_parallel_size = args.ep
cfg.model.sequence_parallel = args.tp > 1
cfg.model.recompute_granularity = args.recompute
cfg.model.recompute_method = "uniform"
cfg.model.recompute_num_layers = args.layers
cfg.model.moe_token_dispatcher_type = "alltoall"
pretrain(config=cfg, forward_step_func=forward_step)
