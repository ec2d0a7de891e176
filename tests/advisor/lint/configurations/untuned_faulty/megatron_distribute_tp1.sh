#!/bin/bash
python pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 \
  --max-position-embeddings 1024 --fp16 --recompute-granularity full --recompute-method uniform \
  --recompute-num-layers 1 --distribute-saved-activations --disable-bias-linear
