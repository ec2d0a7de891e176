#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --disable-bias-linear --seq-length 4096 --max-position-embeddings 4096 --bf16 \
  --recompute-granularity selectiv --recompute-modules mlp; echo "exit $?"
