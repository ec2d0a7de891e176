#!/bin/bash
# Launches two runs through one function; the inner script is a here-document
launch() {
    local name=$1; shift
    srun --nodes=4 --ntasks-per-node=1 bash <<EOS
source /opt/env.sh
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \\
  --num-layers 40 --hidden-size 5120 --num-attention-heads 40 --seq-length 4096 \\
  --max-position-embeddings 4096 --disable-bias-linear --swiglu --bf16 \\
  --tensor-model-parallel-size 2 --sequence-parallel \\
  --micro-batch-size 1 --global-batch-size 512 --save ckpt/$name $@
EOS
}
launch baseline
launch recompute --recompute-granularity selective --recompute-modules mlp
