#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 96 --hidden-size 12288 --num-attention-heads 96 \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 --seq-length 2048 --max-position-embeddings 2048 \
  --micro-batch-size 1 --global-batch-size 1536 --train-samples 146484375 --lr-warmup-samples 3906252 --lr-decay-samples 126953125 \
  --split 98,2,0 --clip-grad 1.0 --weight-decay 0.1 --bf16
