#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
run() {
  local name=$1; shift
  torchrun --nproc_per_node 8 pretrain_gpt.py --bf16 --sequence-parallel --use-distributed-optimizer --save /ckpt/$name "$@"
}
run dense $DENSE_ARGS --recompute-granularity selective --recompute-modules mlp
run moe $MOE_ARGS --recompute-granularity selective --recompute-modules moe_act --overlap-param-gather
