#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_NVLS_ENABLE=0
MOE="--num-experts 128 --moe-ffn-hidden-size 768 --moe-router-topk 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-permute-fusion"
until torchrun --nproc_per_node=8 --nnodes=4 --node_rank=$RANK pretrain_gpt.py \
    --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 4 --kv-channels 128 --qk-layernorm \
    --seq-length 4096 --max-position-embeddings 40960 --swiglu --disable-bias-linear \
    --normalization RMSNorm --bf16 --expert-model-parallel-size 8 --pipeline-model-parallel-size 2 \
    --hidden-dropout 0.0 --attention-dropout 0.0 \
    $MOE --micro-batch-size 1 --global-batch-size 512 --use-distributed-optimizer \
    --recompute-granularity selective --recompute-modules layernorm moe_act \
    --save ckpts --load ckpts; do
  sleep 60
done
