#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-4}
MODEL_ARGS=(
  --num-layers 62 --hidden-size 8192 --ffn-hidden-size 28672
  --num-attention-heads 64 --group-query-attention --num-query-groups 8
  --seq-length 4096 --max-position-embeddings 4096
  --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
)
PARALLEL_ARGS=(
  --tensor-model-parallel-size 4
  --pipeline-model-parallel-size 8
  --sequence-parallel
  --use-distributed-optimizer
)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 128 --train-iters 10000 --bf16 --lr 1e-4)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py ${MODEL_ARGS[@]} ${PARALLEL_ARGS[@]} ${TRAINING_ARGS[@]}
