#!/bin/bash
# Llama 3.1 405B: 126 layers, embedding and loss count as one each
torchrun --nproc_per_node 8 --nnodes 128 pretrain_gpt.py --num-layers 126 --hidden-size 16384 --ffn-hidden-size 53248 \
  --num-attention-heads 128 --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear \
  --tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 16 --num-layers-per-virtual-pipeline-stage 1 \
  --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split \
  --seq-length 8192 --max-position-embeddings 131072 --micro-batch-size 1 --global-batch-size 1024 \
  --bf16 --use-distributed-optimizer --overlap-grad-reduce --train-iters 100
