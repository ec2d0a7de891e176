#!/bin/bash
SLIME_DIR="${SLIME_DIR:-/home/slime}"
MODEL_DIR="${MODEL_DIR:-/root/models}"
source "${SCRIPT_DIR}/models/deepseek-v3.sh"
PERF_ARGS=(--tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 4 --context-parallel-size 4
 --expert-model-parallel-size 32 --expert-tensor-parallel-size 1 --decoder-last-pipeline-num-layers 13
 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --use-dynamic-batch-size --max-tokens-per-gpu 16384 --moe-enable-deepep --moe-token-dispatcher-type flex)
MODEL_ARGS_ROTARY_BASE=5000000
python3 train.py --actor-num-nodes 16 --actor-num-gpus-per-node 8 --no-offload ${MODEL_ARGS[@]} ${PERF_ARGS[@]} --optimizer-cpu-offload --use-precision-aware-optimizer
