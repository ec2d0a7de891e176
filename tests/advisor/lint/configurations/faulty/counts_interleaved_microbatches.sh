#!/bin/bash
# 32 GPUs: TP 2 x PP 4, DP 4
torchrun --nproc_per_node=8 --nnodes=4 --node_rank=$RANK --master_addr=$MASTER_ADDR pretrain_gpt.py \
  --tensor-model-parallel-size 2 --sequence-parallel \
  --pipeline-model-parallel-size 4 \
  --num-layers-per-virtual-pipeline-stage 4 \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --seq-length 4096 --max-position-embeddings 4096 \
  --micro-batch-size 1 --global-batch-size 24 \
  --train-iters 100 --bf16 --use-distributed-optimizer --overlap-grad-reduce
