#!/bin/bash
set -ex
export PYTHONBUFFERED=16
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/glm4.5-355B-A32B.sh"
CKPT_ARGS=( --hf-checkpoint $BASE_DIR/GLM-4.5-355B-A32B --ref-load $BASE_DIR/GLM-4.5-355B-A32B_torch_dist/ )
PERF_ARGS=(
   --tensor-model-parallel-size 8
   --sequence-parallel
   --pipeline-model-parallel-size 4
   --context-parallel-size 2
   --expert-model-parallel-size 16
   --expert-tensor-parallel-size 1
   --decoder-last-pipeline-num-layers 23
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 16384
)
OPTIMIZER_ARGS=( --optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1
   --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer )
MISC_ARGS=( --attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
   --attention-backend flash --moe-enable-deepep --moe-token-dispatcher-type flex )
ray job submit --address="http://${MASTER_ADDR}:8265" --runtime-env-json='{"env_vars":{"CUDA_DEVICE_MAX_CONNECTIONS":"1"}}' \
   -- python3 train.py --actor-num-nodes 8 --actor-num-gpus-per-node 8 --colocate \
   ${MODEL_ARGS[@]} ${CKPT_ARGS[@]} ${OPTIMIZER_ARGS[@]} ${PERF_ARGS[@]} ${MISC_ARGS[@]}
