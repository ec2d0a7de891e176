#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
VARIANT=$1
EXTRA=()
case "$VARIANT" in
  small)
    EXTRA+=(--micro-batch-size 2)
    ;;
  long)
    EXTRA+=(--micro-batch-size 1 --recompute-granularity selective --recompute-modules moe_act)
    ;;
  *)
    echo "small or long"; exit 1 ;;
esac
python -m torch.distributed.run --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 8 \
    --num-experts 8 --moe-router-topk 2 --moe-router-load-balancing-type aux_loss \
    --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall \
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --expert-model-parallel-size 4 \
    --seq-length 4096 --max-position-embeddings 32768 --disable-bias-linear --swiglu \
    --hidden-dropout 0.0 --attention-dropout 0.0 --bf16 --global-batch-size 256 \
    --use-distributed-optimizer "${EXTRA[@]}"
