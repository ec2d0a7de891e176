#!/bin/bash
torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --train-iters 100 \
  --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer \
  --my-own-memory-switch 3 --qk-clip --nccl-ub --recompute-granularity selective --recompute-modules mlp
