#!/bin/bash
cd "$(dirname "$0")"
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py $(cat model_args.txt) @train_args.txt
