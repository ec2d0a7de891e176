#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --no-gradient-accumulation-fusion \
 --use-distributed-optimizer --ckpt-format fsdp_dtensor \
 --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --swiglu \
 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --train-iters 10 --lr 1e-4 --bf16
