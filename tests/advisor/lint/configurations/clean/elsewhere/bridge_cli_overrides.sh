#!/bin/bash
torchrun --nproc_per_node=8 scripts/training/run_recipe.py \
    --recipe qwen3_next_80b_a3b_pretrain_config \
    model.recompute_granularity=selective \
    'model.recompute_modules=[moe_act,layernorm]' \
    model.overlap_moe_expert_parallel_comm=true \
    model.sequence_parallel=true \
    comm_overlap.overlap_moe_expert_parallel_comm=true \
    train.global_batch_size=256 train.micro_batch_size=1
