#!/bin/bash
EXTRA_ARGS=${EXTRA_ARGS:-""}
MODEL_ARGS=${MODEL_ARGS:?set it}
torchrun pretrain_gpt.py $MODEL_ARGS --sequence-parallel --bf16 $EXTRA_ARGS --overlap-param-gather
