#!/bin/bash
unset CUDA_DEVICE_MAX_CONNECTIONS
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \
    --use-megatron-fsdp \
    --data-parallel-sharding-strategy optim_grads_params \
    --no-gradient-accumulation-fusion \
    --ckpt-format fsdp_dtensor \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --init-model-with-meta-device \
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
    --group-query-attention --num-query-groups 8 \
    --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 500000 \
    --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights \
    --attention-dropout 0.0 --hidden-dropout 0.0 \
    --micro-batch-size 1 --global-batch-size 128 --train-iters 100 --lr 1e-4 --bf16 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --mock-data --tokenizer-type NullTokenizer --vocab-size 128256
