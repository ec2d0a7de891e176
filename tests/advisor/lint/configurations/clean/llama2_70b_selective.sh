#!/bin/bash
set -x
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_IB_SL=1
TP=8
PP=4
VPP=5
MBS=1
GBS=1024
torchrun --nproc_per_node 8 --nnodes 8 --node_rank ${RANK} --master_addr ${MASTER_ADDR} --master_port 6000 \
    pretrain_gpt.py \
    --use-mcore-models --transformer-impl transformer_engine \
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} \
    --num-layers-per-virtual-pipeline-stage $((80 / PP / VPP)) \
    --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
    --group-query-attention --num-query-groups 8 \
    --seq-length 4096 --max-position-embeddings 4096 \
    --position-embedding-type rope --rotary-base 10000 \
    --swiglu --disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-5 \
    --untie-embeddings-and-output-weights --no-masked-softmax-fusion \
    --attention-dropout 0.0 --hidden-dropout 0.0 \
    --micro-batch-size ${MBS} --global-batch-size ${GBS} --train-iters 1000 \
    --lr 1.5e-4 --min-lr 1.5e-5 --lr-decay-style cosine --weight-decay 0.1 --clip-grad 1.0 \
    --bf16 \
    --recompute-granularity selective \
    --recompute-modules mlp \
    --attention-backend flash \
    --tokenizer-type Llama2Tokenizer --tokenizer-model /data/llama/tokenizer.model \
    --data-path /data/c4/my_text_document --split 99,1,0 \
    --log-interval 1 --eval-iters 0 --no-load-optim
