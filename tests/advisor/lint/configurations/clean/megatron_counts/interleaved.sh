#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=16
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py --num-layers 80 --hidden-size 8192 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 8 --ffn-hidden-size 28672 --swiglu --disable-bias-linear \
  --tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5 \
  --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128 --bf16 --fp8-format hybrid \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --train-iters 100
