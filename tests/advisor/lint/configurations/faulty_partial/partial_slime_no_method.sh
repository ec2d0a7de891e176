#!/bin/bash
source "scripts/models/glm4-9B.sh"
PERF_ARGS=( --tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity full --recompute-num-layers 1 --use-dynamic-batch-size --max-tokens-per-gpu 4608 )
ray job submit -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 4 ${MODEL_ARGS[@]} ${PERF_ARGS[@]}
