#!/bin/sh
export CUDA_DEVICE_MAX_CONNECTIONS=1
set -- --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
set -- "$@" --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear
set -- "$@" --untie-embeddings-and-output-weights --position-embedding-type rope --rotary-base 500000
set -- "$@" --seq-length 8192 --max-position-embeddings 8192 --attention-dropout 0 --hidden-dropout 0
set -- "$@" --micro-batch-size 1 --global-batch-size 128 --train-iters 100 --lr 3e-4 --bf16
set -- "$@" --tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer
set -- "$@" --recompute-granularity full --recompute-method uniform --recompute-num-layers 2
if [ "$PROFILE" = 1 ]; then
  set -- "$@" --profile --profile-step-start 10 --profile-step-end 12
fi
exec torchrun --nproc_per_node 8 pretrain_gpt.py "$@" --mock-data --tokenizer-type NullTokenizer --vocab-size 128256
