#!/bin/bash
SIZE=${1:-8b}
if [ "$SIZE" = "8b" ]; then
    ARGS=(--num-layers 32 --tensor-model-parallel-size 1)
else
    ARGS=(--num-layers 80 --tensor-model-parallel-size 4 --sequence-parallel)
    ARGS+=(--recompute-granularity full --recompute-method uniform --recompute-num-layers 1)
    ARGS+=(--distribute-saved-activations)
fi
CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}" \
    --hidden-size 4096 --num-attention-heads 32 --disable-bias-linear --bf16 \
    --seq-length 4096 --max-position-embeddings 4096
