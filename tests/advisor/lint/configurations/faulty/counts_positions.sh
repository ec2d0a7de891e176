#!/bin/bash
SEQ_LEN=32768
torchrun --nproc_per_node=8 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --seq-length $SEQ_LEN \
  --max-position-embeddings 8192 \
  --position-embedding-type rope --context-parallel-size 4 --tensor-model-parallel-size 2 \
  --sequence-parallel --micro-batch-size 1 --global-batch-size 16 --train-iters 100 --bf16 \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
