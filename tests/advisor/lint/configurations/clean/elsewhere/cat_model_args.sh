#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \
    $(cat configs/model_args.txt) \
    --use-distributed-optimizer \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --distribute-saved-activations \
    --moe-token-dispatcher-type alltoall \
    --micro-batch-size 1 --global-batch-size 256 --bf16
