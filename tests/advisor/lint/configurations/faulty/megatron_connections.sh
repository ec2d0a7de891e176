#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=8
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \
  --num-attention-heads 32 --disable-bias-linear --bf16 --seq-length 4096 \
  --max-position-embeddings 4096 --tensor-model-parallel-size 4 --sequence-parallel \
  --recompute-granularity selective --recompute-modules mlp
