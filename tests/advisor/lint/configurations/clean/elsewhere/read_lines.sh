#!/bin/bash
ARGS=()
while IFS= read -r line; do ARGS+=("$line"); done < args.txt
torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}" --sequence-parallel --moe-grouped-gemm --recompute-granularity selective --recompute-modules moe_act
