#!/bin/bash
source common.sh
torchrun ${DIST} pretrain_gpt.py ${MODEL_ARGS[@]} ${DATA_ARGS[@]} --bf16 \
  --recompute-granularity selective --recompute-num-layers 8
