#!/bin/bash
torchrun --nproc_per_node=8 --nnodes=16 pretrain_gpt.py --num-layers 94 --hidden-size 4096 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 4 --tensor-model-parallel-size 2 --sequence-parallel \
  --pipeline-model-parallel-size 8 --decoder-first-pipeline-num-layers 11 --decoder-last-pipeline-num-layers 11 \
  --seq-length 4096 --max-position-embeddings 40960 --micro-batch-size 1 --global-batch-size 1024 \
  --bf16 --use-distributed-optimizer --train-iters 100
