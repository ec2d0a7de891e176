#!/bin/bash
# MODEL_ARGS, PARALLEL_ARGS and DATA_ARGS are exported by the caller (see launch.py)
set -eu
exec python -m torch.distributed.run --nproc-per-node 8 pretrain_gpt.py \
    ${MODEL_ARGS} \
    ${PARALLEL_ARGS} \
    ${DATA_ARGS} \
    --recompute-granularity selective \
    --recompute-modules core_attn moe \
    --cuda-graph-impl none \
    --expert-tensor-parallel-size 1 \
    --num-layers-per-virtual-pipeline-stage 2 \
    --bf16
