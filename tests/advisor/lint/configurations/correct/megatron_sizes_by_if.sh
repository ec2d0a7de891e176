#!/usr/bin/env bash
set -euo pipefail
# usage: ./train.sh 8b|70b|405b
MODEL_SIZE=${1:?give a size}
SEQ_LEN=${SEQ_LEN:-8192}

if [[ "$MODEL_SIZE" == "8b" ]]; then
    TP=1; PP=1
    SIZE_ARGS="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32"
    RECOMPUTE_ARGS=""
elif [[ "$MODEL_SIZE" == "70b" ]]; then
    TP=4; PP=4
    SIZE_ARGS="--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64"
    RECOMPUTE_ARGS="--recompute-granularity selective --recompute-modules mlp"
elif [[ "$MODEL_SIZE" == "405b" ]]; then
    TP=8; PP=9
    SIZE_ARGS="--num-layers 126 --hidden-size 16384 --ffn-hidden-size 53248 --num-attention-heads 128"
    RECOMPUTE_ARGS="--recompute-granularity full --recompute-method block --recompute-num-layers 4"
else
    echo "unknown size: $MODEL_SIZE" >&2
    exit 2
fi

COMMON="--group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear \
  --normalization RMSNorm --position-embedding-type rope --bf16 \
  --hidden-dropout 0.0 --attention-dropout 0.0 \
  --seq-length $SEQ_LEN --max-position-embeddings $SEQ_LEN"

if [ "$TP" -gt 1 ]; then
    COMMON="$COMMON --sequence-parallel"
fi

export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes ${NNODES:-1} --node_rank ${RANK:-0} \
    pretrain_gpt.py $SIZE_ARGS $COMMON $RECOMPUTE_ARGS \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
    --micro-batch-size 1 --global-batch-size 512 \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    2>&1 | tee logs/train_${MODEL_SIZE}.log
