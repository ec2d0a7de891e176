#!/bin/bash
O=( --cpu-offloading-num-layers 8 )
R=( --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 )
srun torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --disable-bias-linear --seq-length 4096 --max-position-embeddings 4096 --bf16 ${O[@]} ${R[*]} > log 2>&1 &
wait
