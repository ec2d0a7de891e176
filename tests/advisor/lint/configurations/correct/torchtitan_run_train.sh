#!/usr/bin/bash
# Copyright (c) Meta Platforms, Inc. and affiliates.
set -ex
NGPU=${NGPU:-"8"}
export LOG_RANK=${LOG_RANK:-0}
CONFIG_FILE=${CONFIG_FILE:-"./torchtitan/models/llama3/train_configs/llama3_70b.toml"}
TRAIN_FILE=${TRAIN_FILE:-"torchtitan.train"}

PYTORCH_ALLOC_CONF="expandable_segments:True" \
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint="localhost:0" \
--local-ranks-filter ${LOG_RANK} --role rank --tee 3 \
-m ${TRAIN_FILE} --job.config_file ${CONFIG_FILE} --activation_checkpoint.mode memory_budget \
--activation_checkpoint.memory_budget 0.4 --compile.enable --parallelism.tensor_parallel_degree=2 "$@"
