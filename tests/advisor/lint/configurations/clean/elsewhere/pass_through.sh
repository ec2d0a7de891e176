#!/bin/bash
# usage: ./run.sh --num-layers 61 …
export CUDA_DEVICE_MAX_CONNECTIONS=1
NNODES=${SLURM_NNODES:-1}
torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py \
    --bf16 --sequence-parallel --use-distributed-optimizer \
    --overlap-param-gather --overlap-grad-reduce \
    --recompute-granularity selective --recompute-modules layernorm moe_act \
    --fine-grained-activation-offloading --offload-modules moe_act \
    "$@"
