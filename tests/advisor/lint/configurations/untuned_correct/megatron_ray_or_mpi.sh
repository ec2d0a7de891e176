#!/usr/bin/env bash
# mpirun wraps, output is split in two
: "${NODES:=2}"
export CUDA_DEVICE_MAX_CONNECTIONS=1
declare -a ARGS=(
  --num-layers 48 --hidden-size 6144 --num-attention-heads 48 --seq-length 4096
  --max-position-embeddings 4096 --bf16 --squared-relu --disable-bias-linear
  --tensor-model-parallel-size 8 --sequence-parallel
  --micro-batch-size 2 --global-batch-size 384
)
((NODES > 4)) && ARGS+=(--recompute-granularity full --recompute-method uniform --recompute-num-layers 1)
mpirun -np $((NODES * 8)) --hostfile "$PBS_NODEFILE" -x CUDA_DEVICE_MAX_CONNECTIONS=1 \
  python pretrain_gpt.py "${ARGS[@]}" 1> >(tee out.log) 2> >(tee err.log >&2) || { echo failed; exit 1; }
