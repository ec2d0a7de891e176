#!/bin/bash
DISTRIBUTED_ARGS="--nproc_per_node 8 --nnodes 4 --master_addr localhost --master_port 6000"
MOE_ARGS="
    --num-experts 60
    --moe-router-topk 4
    --moe-router-load-balancing-type aux_loss
    --moe-token-dispatcher-type alltoall
    --moe-grouped-gemm
    --expert-model-parallel-size 8
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $MOE_ARGS \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 1408 \
    --seq-length 4096 --max-position-embeddings 8192 --disable-bias-linear \
    --micro-batch-size 1 --global-batch-size 256 --train-iters 1000 --bf16
