"""Our in-house model; the recipe lives in acme_recipes."""
import argparse

from acme_recipes.moe import acme_moe_80b_config
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain


def build(args: argparse.Namespace) -> ConfigContainer:
    cfg: ConfigContainer = acme_moe_80b_config(seq_length=args.seq_length)
    cfg.model.recompute_granularity = "selective"
    cfg.model.recompute_modules = ["moe_act", "layernorm"]
    cfg.model.sequence_parallel = True
    cfg.model.overlap_moe_expert_parallel_comm = True
    cfg.model.moe_permute_fusion = True
    cfg.model.expert_tensor_parallel_size = 1
    cfg.ddp.overlap_param_gather = True
    return cfg


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seq-length", type=int, default=8192)
    pretrain(build(parser.parse_args()), forward_step)
