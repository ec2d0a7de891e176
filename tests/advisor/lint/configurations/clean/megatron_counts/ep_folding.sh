#!/bin/bash
# 64 GPUs: attention TP 4, CP 2, experts EP 8, ETP 1
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 --num-experts 8 --moe-router-topk 2 \
  --moe-token-dispatcher-type alltoall --moe-grouped-gemm --disable-bias-linear --swiglu \
  --tensor-model-parallel-size 4 --sequence-parallel --context-parallel-size 2 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 \
  --seq-length 32768 --max-position-embeddings 32768 --micro-batch-size 1 --global-batch-size 256 \
  --bf16 --use-distributed-optimizer --train-iters 100
