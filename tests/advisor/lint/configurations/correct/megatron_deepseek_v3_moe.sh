#!/bin/bash
# DeepSeek-V3 with MLA, EP 64, FP8 blockwise
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_ALLOW_NONDETERMINISTIC_ALGO=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

MODEL_ARGS=(
  --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128
  --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512
  --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128
  --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope
  --untie-embeddings-and-output-weights --hidden-dropout 0.0 --attention-dropout 0.0
)
MOE_ARGS=(
  --num-experts 256
  --moe-layer-freq "([0]*3+[1]*58)"
  --moe-ffn-hidden-size 2048
  --moe-shared-expert-intermediate-size 2048
  --moe-router-topk 8
  --moe-router-score-function sigmoid
  --moe-router-enable-expert-bias
  --moe-router-load-balancing-type seq_aux_loss
  --moe-token-dispatcher-type alltoall
  --moe-grouped-gemm
)
PARALLEL=(
  --tensor-model-parallel-size 1
  --pipeline-model-parallel-size 16
  --decoder-first-pipeline-num-layers 3
  --decoder-last-pipeline-num-layers 2
  --expert-model-parallel-size 64
  --expert-tensor-parallel-size 1
)
RECOMPUTE=(--recompute-granularity selective --recompute-modules mla_up_proj moe_act mlp)

torchrun --nproc-per-node 8 --nnodes 128 --node-rank "$SLURM_NODEID" \
  --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" pretrain_gpt.py \
  "${MODEL_ARGS[@]}" "${MOE_ARGS[@]}" "${PARALLEL[@]}" "${RECOMPUTE[@]}" \
  --seq-length 4096 --max-position-embeddings 4096 \
  --micro-batch-size 1 --global-batch-size 8192 \
  --bf16 --fp8-format e4m3 --fp8-recipe blockwise \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  "$@" |& tee "${LOG_DIR:-logs}/dsv3.log"
