#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --swiglu \
 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --train-iters 10 --lr 1e-4 --bf16 \
 --tensor-model-parallel-size 2 --cpu-offloading --cpu-offloading-num-layers 8 --recompute-granularity full --recompute-method block --recompute-num-layers 8
