#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
MODEL=(--num-layers 40 --hidden-size 5120 --num-attention-heads 40 --seq-length 4096 --max-position-embeddings 4096)
PAR=(--tensor-model-parallel-size 4 --sequence-parallel)
RC=(--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --distribute-saved-activations)
torchrun --nproc_per_node 8 pretrain_gpt.py "${MODEL[@]}" "${PAR[@]}" "${RC[@]}" --micro-batch-size 1 --global-batch-size 32 --bf16 --train-iters 5 --lr 1e-4
