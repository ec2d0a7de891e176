#!/bin/bash
torchrun --nproc_per_node=8 --nnodes=4 pretrain_gpt.py --num-layers 27 --hidden-size 2048 --num-attention-heads 16 \
  --pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 13 \
  --seq-length 4096 --max-position-embeddings 163840 --micro-batch-size 1 --global-batch-size 1024 \
  --bf16 --use-distributed-optimizer --train-iters 100
