#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=8
VOCAB_FILE=$3 #<Specify path to file>/gpt2-vocab.json
MERGE_FILE=$4
gpt_args() {
    echo --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 \
        --max-position-embeddings 2048 --attention-backend auto
}
train() {
  local pp=$1; shift
  torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \
    --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 \
    --micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375 \
    --fp16 --init-method-std 0.006 --tensor-model-parallel-size 8 --pipeline-model-parallel-size $pp \
    --vocab-file $VOCAB_FILE --merge-file $MERGE_FILE --vocab-size 51200 "$@"
}
train 8 --recompute-activations --sequence-parallel
