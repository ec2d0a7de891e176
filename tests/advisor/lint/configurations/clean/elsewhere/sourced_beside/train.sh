#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=32
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "${HERE}/model.sh"
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py ${MODEL_ARGS[@]} \
  --tensor-model-parallel-size $TP --sequence-parallel --expert-model-parallel-size 8 \
  --overlap-moe-expert-parallel-comm --use-distributed-optimizer \
  --seq-length 4096 --micro-batch-size 1 --global-batch-size 256 --train-iters 10 --lr 1e-4 --bf16 \
  --recompute-granularity selective --recompute-modules moe_act layernorm \
  --mock-data --tokenizer-type NullTokenizer --vocab-size 151936
