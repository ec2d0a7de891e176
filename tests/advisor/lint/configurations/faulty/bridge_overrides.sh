#!/bin/bash
torchrun --nproc_per_node=8 examples/recipes/llama/pretrain_llama3_8b.py \
  train.global_batch_size=128 \
  model.tensor_model_parallel_size=2 \
  model.recompute_granularity=full model.recompute_num_layers=1
