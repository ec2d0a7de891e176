#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=2
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --master_addr ${MASTER_ADDR:-localhost}
    --master_port 6000
)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 11008
    --num-attention-heads 32
    --seq-length 4096
    --max-position-embeddings 4096
    --position-embedding-type rope
    --swiglu
    --normalization RMSNorm
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --transformer-impl transformer_engine
)
TRAINING_ARGS=(
    --lr 3e-4
    --min-lr 3e-5
    --lr-decay-style cosine
    --train-iters 100000
    --lr-warmup-iters 2000
    --weight-decay 0.1
    --clip-grad 1.0
    --bf16
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
DATA_ARGS=(
    --data-path /data/redpajama_text_document
    --tokenizer-type Llama2Tokenizer
    --tokenizer-model /data/tokenizer.model
    --split 99,1,0
)
PERF_ARGS=(
    --num-experts 64
    --moe-router-topk 6
    --moe-grouped-gemm
    --expert-model-parallel-size 8
    --moe-token-dispatcher-type flex
    --moe-flex-dispatcher-backend hybridep
    --use-transformer-engine-op-fuser
    --moe-expert-rank-capacity-factor 1.5
    --moe-paged-stash
    --micro-batch-size 1
    --global-batch-size 256
)
torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    "${MODEL_ARGS[@]}" "${TRAINING_ARGS[@]}" "${DATA_ARGS[@]}" "${PERF_ARGS[@]}" \
    --save /ckpt --load /ckpt --save-interval 1000 --log-interval 1 --eval-iters 10 --eval-interval 500
