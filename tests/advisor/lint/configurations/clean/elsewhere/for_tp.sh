#!/bin/bash
for TP in 1 2 4; do
 for EP in 8 16; do
  torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py ${BASE} --tensor-model-parallel-size $TP --expert-model-parallel-size $EP --sequence-parallel --bf16
 done
done
