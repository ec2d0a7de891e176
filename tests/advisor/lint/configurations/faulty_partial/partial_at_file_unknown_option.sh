#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py @args.txt --tensor_model_parallel_size 4 --bf16 \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
