#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
  --seq-length 2048 --max-position-embeddings 2048 --attention-dropout 0 --hidden-dropout 0 \
  --micro-batch-size 4 --global-batch-size 256 --train-iters 100 --lr 1e-4 --bf16 \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 \
  --eval-iters 0 --empty-unused-memory-level 0 --manual-gc-interval 0 --start-weight-decay 0 --end-weight-decay 0 \
  --use-distributed-optimizer --num-workers 0 --mock-data --tokenizer-type NullTokenizer --vocab-size 50257
