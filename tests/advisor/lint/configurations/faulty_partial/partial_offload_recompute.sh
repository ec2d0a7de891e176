#!/bin/bash
source env.sh
torchrun $DIST pretrain_gpt.py $MODEL --bf16 --cpu-offloading --cpu-offloading-num-layers 4 \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 2
