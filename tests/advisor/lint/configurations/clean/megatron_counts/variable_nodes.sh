#!/bin/bash
TP=4
PP=4
torchrun --nproc_per_node 8 --nnodes $WORLD_SIZE --node_rank $RANK pretrain_gpt.py --num-layers 48 --hidden-size 8192 --num-attention-heads 64 \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --sequence-parallel \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 --global-batch-size 1152 --bf16 --train-iters 100
