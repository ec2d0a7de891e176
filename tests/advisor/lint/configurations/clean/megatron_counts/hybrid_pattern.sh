#!/bin/bash
torchrun --nproc_per_node=8 pretrain_mamba.py --hybrid-override-pattern "M-M-M-M*-M-M-M-M*-M-M-M-M-" --num-layers 26 \
  --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 32 \
  --tensor-model-parallel-size 2 --sequence-parallel --bf16 --train-iters 100
