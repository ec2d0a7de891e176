#!/bin/bash
# Whoever calls it may add options.
set -ex
NGPU=${NGPU:-8}
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint "localhost:0" \
  -m torchtitan.train --activation_checkpoint.mode memory_budget --training.local_batch_size 2 "$@"
