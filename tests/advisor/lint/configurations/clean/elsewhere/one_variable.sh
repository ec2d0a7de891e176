#!/bin/bash
# TP, PP and EP come from the scheduler's environment
export CUDA_DEVICE_MAX_CONNECTIONS=32
torchrun --nproc_per_node 8 --nnodes ${NNODES} pretrain_gpt.py \
  --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128 \
  --group-query-attention --num-query-groups 4 --qk-layernorm --swiglu --normalization RMSNorm --disable-bias-linear \
  --untie-embeddings-and-output-weights --position-embedding-type rope \
  --num-experts ${NUM_EXPERTS} --moe-router-topk 8 --moe-ffn-hidden-size 768 --moe-grouped-gemm --moe-token-dispatcher-type ${DISPATCHER} \
  --tensor-model-parallel-size ${TP} --sequence-parallel \
  --pipeline-model-parallel-size ${PP} --num-virtual-stages-per-pipeline-rank ${VPP} \
  --expert-model-parallel-size ${EP} --expert-tensor-parallel-size 1 --overlap-moe-expert-parallel-comm \
  --use-distributed-optimizer --seq-length 4096 --max-position-embeddings 40960 \
  --attention-dropout 0.0 --hidden-dropout 0.0 --micro-batch-size 1 --global-batch-size 512 --train-iters 100 --lr 1e-4 --bf16 \
  --recompute-granularity selective --recompute-modules ${MODULES}
