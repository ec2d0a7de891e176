#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
RECOMPUTE_ARGS=(
    --recompute-granularity full
    --recompute-method uniform
)
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \
    --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \
    --disable-bias-linear --micro-batch-size 1 --global-batch-size 64 --bf16 \
    "${RECOMPUTE_ARGS[@]}" 2>&1 | tee log.txt
