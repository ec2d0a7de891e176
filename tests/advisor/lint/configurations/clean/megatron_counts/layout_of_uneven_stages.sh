#!/bin/bash
# 61 layers and one MTP layer over 8 stages of two chunks
torchrun --nproc_per_node=8 --nnodes=32 pretrain_gpt.py --num-layers 61 --hidden-size 7168 --num-attention-heads 128 --ffn-hidden-size 18432 \
  --pipeline-model-parallel-size 8 --pipeline-model-parallel-layout "Et*3|(tttt|)*14ttL" \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 2048 \
  --bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --train-iters 100
