#!/bin/bash
set -e
torchrun --nproc_per_node 8 scripts/performance/run_script.py -m llama3 -mr llama3_70b -c fp8_cs --gpu h100 -ng 64 -gn 8 \
  -tp 4 -pp 8 -vp 5 -cp 1 -mb 1 -gb 128 -rl 2 --cuda_graph_impl none
