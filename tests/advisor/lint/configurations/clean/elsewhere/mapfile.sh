#!/bin/bash
mapfile -t MODEL_ARGS < models/qwen3_235b.args
readarray -t EXTRA < <(grep -v '^#' extra.args)
torchrun --nproc_per_node 8 --nnodes 32 pretrain_gpt.py "${MODEL_ARGS[@]}" "${EXTRA[@]}" \
  --sequence-parallel --overlap-moe-expert-parallel-comm \
  --recompute-granularity selective --recompute-modules moe_act --bf16
