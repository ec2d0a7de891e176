#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py $(cat model_args.txt) --tensor-model-parallel-size 8 --sequence-parallel \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --distribute-saved-activations --bf16
