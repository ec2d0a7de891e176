#!/bin/bash
# DeepSeek-like: 61 layers over 8 stages
PP=8
torchrun --nproc_per_node=8 --nnodes=16 pretrain_gpt.py \
  --num-layers 61 --hidden-size 7168 --num-attention-heads 128 --ffn-hidden-size 18432 \
  --pipeline-model-parallel-size ${PP} \
  --decoder-first-pipeline-num-layers 7 \
  --decoder-last-pipeline-num-layers 7 \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 1024 \
  --bf16 --use-distributed-optimizer --train-iters 100
