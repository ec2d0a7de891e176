#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
NUM_LAYERS=27
HIDDEN_SIZE=2048
torchrun --nproc_per_node 8 --nnodes 2 --node_rank $RANK --master_addr $MASTER_ADDR --master_port 29500 pretrain_deepseek.py \
  --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN_SIZE} --ffn-hidden-size 10944 \
  --num-attention-heads 16 --kv-channels 16 --qk-layernorm \
  --multi-latent-attention --kv-lora-rank 512 --v-head-dim 128 --qk-head-dim 128 --qk-pos-emb-head-dim 64 \
  --rotary-scaling-factor 40 --mscale 0.707 --mscale-all-dim 0.707 --rotary-base 10000 --position-embedding-type rope --no-rope-fusion \
  --moe-ffn-hidden-size 1408 --moe-router-topk 6 --num-experts 64 --moe-layer-freq "([0]*1+[1]*26)" \
  --moe-shared-expert-intermediate-size 2816 --moe-aux-loss-coeff 1e-3 --moe-router-load-balancing-type seq_aux_loss \
  --moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-router-pre-softmax \
  --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 \
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --sequence-parallel \
  --use-distributed-optimizer --use-mcore-models --transformer-impl transformer_engine \
  --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights \
  --seq-length 4096 --max-position-embeddings 163840 --micro-batch-size 1 --global-batch-size 64 \
  --train-iters 1000 --lr 1e-5 --min-lr 1e-6 --bf16 --attention-dropout 0.0 --hidden-dropout 0.0 \
  --recompute-granularity full --recompute-method block --recompute-num-layers 27 \
  --attention-backend fused --dataset MMAP --data-path /data/mmap_deepseekv2_datasets_text_document --split 99,1,0 \
  --patch-tokenizer-type DeepSeekV2Tokenizer --extra-vocab-size 2400 --load /ckpt --save /out
