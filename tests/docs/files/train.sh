#!/bin/bash
# Llama 3 8B on 8 GPUs
torchrun --nproc-per-node 8 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
  --seq-length 8192 --max-position-embeddings 8192 \
  --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
  --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
  --tokenizer-type NullTokenizer --vocab-size 128256 \
  --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer \
  --micro-batch-size 1 --global-batch-size 128 --bf16 \
  --recompute-granularity selective --recompute-modules core_attn mlp \
  --transformer-impl transformer_engine --mock-data
