#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \
  --num-attention-heads 32 --disable-bias-linear --bf16 --seq-length 4096 \
  --max-position-embeddings 4096 \
  --recompute-granularity full --recompute-method block --recompute-num-layers all
