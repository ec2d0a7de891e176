#!/bin/bash
source cluster.sh
if [ "$USE_MOE" = true ]; then
  ARGS="$ARGS --num-experts 64 --expert-model-parallel-size 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall"
fi
ARGS+=" --tensor-model-parallel-size 2 --sequence-parallel"
torchrun pretrain_gpt.py $ARGS --bf16 --recompute-granularity selective --recompute-modules moe_act
