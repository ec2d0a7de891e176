#!/bin/bash
torchrun --nproc_per_node 8 train.py --output_dir out --per_device_train_batch_size 1 \
  --gradient_checkpointing true --bf16 true --num_train_epochs 1 $EXTRA_ARGS
