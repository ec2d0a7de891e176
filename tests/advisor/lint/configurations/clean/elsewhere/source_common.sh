#!/bin/bash
# model and paths are shared between all runs
source "$(dirname "$0")/../common/env.sh"
source common.sh

torchrun ${DISTRIBUTED_ARGS} pretrain_gpt.py \
    ${MODEL_ARGS} ${DATA_ARGS} ${OPTIM_ARGS} \
    --sequence-parallel \
    --micro-batch-size 2 --global-batch-size 512 \
    --bf16 \
    --overlap-moe-expert-parallel-comm --delay-wgrad-compute \
    --recompute-granularity selective --recompute-modules moe_act layernorm
