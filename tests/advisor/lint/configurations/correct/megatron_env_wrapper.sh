#!/bin/bash
# one line, everything through env and nohup
set -x
LOG=out.log
nohup env CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_DEBUG=WARN \
  torchrun --standalone --nproc_per_node=8 pretrain_gpt.py \
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 8 --global-batch-size 512 --bf16 \
  --disable-bias-linear \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 2 \
  --distributed-backend nccl >$LOG 2>&1 &
echo "started $!" && tail -f $LOG
