#!/usr/bin/env bash
set -euxo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=32
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
CMD="torchrun --nproc_per_node=8 --nnodes=${NNODES:-2} --node_rank=${NODE_RANK:-0} --master_addr=${MASTER_ADDR:-127.0.0.1} pretrain_gpt.py"
CMD+=" --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128"
CMD+=" --group-query-attention --num-query-groups 4 --qk-layernorm --swiglu --normalization RMSNorm --disable-bias-linear"
CMD+=" --untie-embeddings-and-output-weights --position-embedding-type rope --rotary-base 1000000"
CMD+=" --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 --moe-grouped-gemm --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-3"
CMD+=" --moe-token-dispatcher-type alltoall --moe-permute-fusion --moe-router-dtype fp32"
CMD+=" --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1"
CMD+=" --overlap-moe-expert-parallel-comm --delay-wgrad-compute"
CMD+=" --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
CMD+=" --seq-length 4096 --max-position-embeddings 40960 --micro-batch-size 1 --global-batch-size 256 --train-iters 200"
CMD+=" --attention-dropout 0.0 --hidden-dropout 0.0 --bf16 --lr 1e-4 --attention-backend flash"
CMD+=" --recompute-granularity selective --recompute-modules moe_act layernorm"
CMD+=" --mock-data --tokenizer-type NullTokenizer --vocab-size 151936"
echo "$CMD"
eval "$CMD"
