#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py "$@" --bf16 --recompute-granularity partial --recompute-modules mlp
