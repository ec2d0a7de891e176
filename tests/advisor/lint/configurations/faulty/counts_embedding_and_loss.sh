#!/bin/bash
MODEL="--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --group-query-attention --num-query-groups 8"
torchrun --nproc_per_node=8 --nnodes=8 pretrain_gpt.py $MODEL \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 \
  --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \
  --bf16 --train-iters 100 --sequence-parallel
