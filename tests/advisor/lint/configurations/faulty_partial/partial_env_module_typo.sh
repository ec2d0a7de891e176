#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py $MODEL_ARGS $PARALLEL_ARGS --bf16 \
  --recompute-granularity selective --recompute-modules layer_norm moe_act
