#!/usr/bin/bash
set -ex
NGPU=${NGPU:-"8"}
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint="localhost:0" \
  -m torchtitan.train --module llama3 --config llama3_8b \
  activation_checkpoint:selective --activation_checkpoint.selective_ac_option op \
  --training.local_batch_size 2 --training.seq_len 8192
