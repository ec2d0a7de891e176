#!/bin/bash
. ./cluster.sh
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $MODEL_ARGS --bf16 --expert-model-parallel-size 8 --num-experts 64 \
  --overlap-moe-expert-parallel-comm --recompute-granularity full --recompute-method block --recompute-num-layers 4
