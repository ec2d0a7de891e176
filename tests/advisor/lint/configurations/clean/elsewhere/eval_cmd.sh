#!/bin/bash
. ./models/${MODEL}.sh
OPTS="--bf16 --use-flash-attn --sequence-parallel --expert-model-parallel-size 8 --moe-grouped-gemm"
OPTS="$OPTS --moe-token-dispatcher-type alltoall --recompute-activations"
CMD="torchrun $DIST pretrain_gpt.py $MODEL_CFG $OPTS"
echo $CMD
eval $CMD
