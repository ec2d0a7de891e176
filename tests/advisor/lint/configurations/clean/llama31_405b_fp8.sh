#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
MODEL_ARGS=(
    --num-layers 126 --hidden-size 16384 --ffn-hidden-size 53248
    --num-attention-heads 128 --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 500000 --rotary-percent 1.0
    --swiglu --normalization RMSNorm --init-method-std 0.0134
    --attention-dropout 0.0 --hidden-dropout 0.0
    --disable-bias-linear --untie-embeddings-and-output-weights
    --attention-backend fused --apply-layernorm-1p
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 8 --context-parallel-size 2
    --pipeline-model-parallel-size 9 --num-layers-per-virtual-pipeline-stage 2
    --sequence-parallel --use-distributed-optimizer
    --overlap-grad-reduce --overlap-param-gather
    --tp-comm-overlap
)
PRECISION_ARGS=(
    --bf16 --fp8-format hybrid --fp8-recipe delayed --fp8-amax-history-len 1024 --fp8-amax-compute-algo max --fp8-param-gather
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 252 --train-samples 1953125000
    --lr 8e-5 --min-lr 8e-7 --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1
    --cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc --empty-unused-memory-level 1
    --recompute-granularity full --recompute-method block --recompute-num-layers 1
)
torchrun --nproc_per_node 8 --nnodes 72 --rdzv_backend c10d --rdzv_endpoint $HEAD:29500 pretrain_gpt.py \
  "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${PRECISION_ARGS[@]}" "${TRAINING_ARGS[@]}" \
  --mock-data --tokenizer-type NullTokenizer --vocab-size 128256 --log-throughput
