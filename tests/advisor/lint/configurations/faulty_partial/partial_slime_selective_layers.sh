#!/bin/bash
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/qwen3-30B-A3B.sh"
PERF_ARGS=(
   --tensor-model-parallel-size 4
   --sequence-parallel
   --expert-model-parallel-size 8
   --recompute-granularity selective
   --recompute-method uniform
   --recompute-num-layers 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 16384
)
ray job submit --address="http://127.0.0.1:8265" -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate \
   ${MODEL_ARGS[@]} ${PERF_ARGS[@]} --attention-backend flash --attention-dropout 0.0 --hidden-dropout 0.0
