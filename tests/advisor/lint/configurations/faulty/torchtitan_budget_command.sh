#!/bin/bash
torchrun --nproc_per_node=8 -m torchtitan.train --model.name llama3 --model.flavor 8B \
  --activation_checkpoint.mode=memory_budget \
  --activation_checkpoint.memory_budget=0.5 --training.local_batch_size 2
