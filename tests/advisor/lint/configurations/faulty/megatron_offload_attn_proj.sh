#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
COMMON="--use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
  --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear \
  --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --transformer-impl transformer_engine --bf16 --lr 1e-4 --train-iters 1000 \
  --data-path /d/x --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B --vocab-size 128256 --split 99,1,0"
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py $COMMON \
  --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer --fine-grained-activation-offloading --offload-modules attn_proj
