#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
for MBS in 1 2 4; do
  torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --disable-bias-linear --swiglu --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size $MBS --global-batch-size 256 --bf16 --tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity selective --recompute-modules mlp 2>&1 | tee log_mbs${MBS}.txt
done
