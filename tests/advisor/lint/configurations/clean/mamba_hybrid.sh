#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
export TRITON_CACHE_DIR="./triton-cache/"
SEQ_LEN=4096
options=" \
       --is-hybrid-model \
       --mamba-state-dim 128 --mamba-head-dim 64 --mamba-num-groups 8 \
       --hybrid-attention-ratio 0.08 \
       --hybrid-mlp-ratio 0.5 \
       --untie-embeddings-and-output-weights \
       --init-method-std 0.02 \
       --position-embedding-type none \
       --num-layers 56 \
       --hidden-size 4096 \
       --num-attention-heads 32 \
       --group-query-attention \
       --num-query-groups 8 \
       --hidden-dropout 0 \
       --attention-dropout 0 \
       --seq-length ${SEQ_LEN} \
       --max-position-embeddings ${SEQ_LEN} \
       --train-samples 10000000 \
       --lr-decay-style cosine --lr 2.5e-4 --min-lr 2.5e-5 \
       --split 99,1,0 \
       --data-path ${DATA_PATH} \
       --tokenizer-type GPTSentencePieceTokenizer \
       --tokenizer-model ${TOKENIZER_PATH} \
       --distributed-backend nccl \
       --micro-batch-size 4 \
       --global-batch-size 1024 \
       --disable-bias-linear --normalization RMSNorm \
       --tensor-model-parallel-size 8 --sequence-parallel \
       --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
       --bf16 --use-mcore-models \
       --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"
torchrun --nproc_per_node 8 ../../pretrain_mamba.py ${options}
