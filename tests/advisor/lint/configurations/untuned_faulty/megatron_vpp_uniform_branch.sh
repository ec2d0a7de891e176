#!/bin/bash
# fault: in the long branch uniform has --recompute-num-layers but granularity selective
CTX=${CTX:-4096}
REC="--recompute-granularity selective --recompute-modules mlp"
if (( CTX > 8192 )); then
  REC="--recompute-granularity selective --recompute-method uniform --recompute-num-layers 1 --recompute-modules mlp"
fi
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --disable-bias-linear --seq-length $CTX --max-position-embeddings $CTX --bf16 $REC |& tee x.log
