#!/bin/bash
python examples/recipes/llama/pretrain_llama3_8b.py model.recompute_granularity=selective \
  "model.recompute_modules=[moe_act,mlp]" train.global_batch_size=128 2>&1 | tee bridge.log
