#!/bin/bash
ARGS=`cat ./args/deepseek_v3.txt`
PARALLEL="--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 8"
torchrun --nproc_per_node 8 --nnodes 64 pretrain_gpt.py ${ARGS} ${PARALLEL} \
   --recompute-granularity selective --recompute-modules mla_up_proj moe_act mlp \
   --moe-enable-deepep --bf16 --use-distributed-optimizer `cat ./args/data.txt`
