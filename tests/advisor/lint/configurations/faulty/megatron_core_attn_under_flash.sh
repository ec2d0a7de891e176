#!/bin/bash
export NVTE_FUSED_ATTN=0 NVTE_UNFUSED_ATTN=0
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \
  --num-attention-heads 32 --disable-bias-linear --bf16 --seq-length 8192 \
  --max-position-embeddings 8192 --attention-backend flash \
  --recompute-activations
