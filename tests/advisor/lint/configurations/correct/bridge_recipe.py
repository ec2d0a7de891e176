"""Llama 3 8B on one node, from the recipe that Megatron Bridge ships."""

import argparse

from megatron.bridge.recipes.llama import llama3_8b_pretrain_config
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recompute", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    cfg = llama3_8b_pretrain_config(global_batch_size=128, micro_batch_size=1, seq_length=8192)
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.context_parallel_size = 1
    if args.recompute:
        cfg.model.recompute_granularity = "full"
        cfg.model.recompute_method = "uniform"
        cfg.model.recompute_num_layers = 1
    else:
        cfg.model.recompute_granularity = "selective"
        cfg.model.recompute_modules = ["mlp"]
    cfg.train.train_iters = 50
    cfg.optimizer.lr = 3e-4
    pretrain(config=cfg, forward_step_func=forward_step)


if __name__ == "__main__":
    main()
