#!/bin/bash
# the method of full recompute was left behind
for seed in 1 2 3; do
  torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
    --disable-bias-linear --seq-length 4096 --max-position-embeddings 4096 --bf16 --seed $seed \
    --recompute-granularity selective --recompute-modules mlp --recompute-num-layers 1 > run_$seed.log 2>&1
done
