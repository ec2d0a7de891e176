#!/bin/bash
# finetune.py builds its parser with fromfile_prefix_chars="@"
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py @args/mixtral_8x22b.txt \
    --sequence-parallel \
    --overlap-param-gather --overlap-grad-reduce \
    --moe-expert-capacity-factor 1.0 --moe-pad-expert-input-to-capacity \
    --recompute-granularity selective --recompute-modules moe_act shared_experts
