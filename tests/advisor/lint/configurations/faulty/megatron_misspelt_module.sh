#!/bin/bash
MODULES="core_attention mlp"
GPT_ARGS="--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --disable-bias-linear \
  --seq-length 2048 --max-position-embeddings 2048 --bf16"
python -m torch.distributed.launch --nproc_per_node 8 pretrain_gpt.py $GPT_ARGS \
  --recompute-granularity selective --recompute-modules $MODULES | tee out.log
