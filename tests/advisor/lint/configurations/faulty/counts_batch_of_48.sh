#!/bin/bash
# LLaMA-3 8B, two nodes
torchrun --nnodes=2 --nproc-per-node=8 pretrain_gpt.py \
  --tensor-model-parallel-size 2 \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 \
  --seq-length 8192 --max-position-embeddings 8192 \
  --micro-batch-size 4 \
  --global-batch-size 48 \
  --train-iters 5000 --bf16 --use-distributed-optimizer
