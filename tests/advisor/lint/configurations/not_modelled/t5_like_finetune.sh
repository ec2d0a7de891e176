#!/bin/bash
python -m torch.distributed.launch --nproc_per_node 8 --nnodes 1 pretrain_t5.py --encoder-num-layers 12 --decoder-num-layers 12 \
  --hidden-size 768 --num-attention-heads 12 --kv-channels 64 --ffn-hidden-size 3072 --encoder-seq-length 512 --decoder-seq-length 128 \
  --max-position-embeddings 512 --micro-batch-size 16 --global-batch-size 128 --train-iters 1000000 --lr 0.0001 --bf16
