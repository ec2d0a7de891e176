#!/bin/bash
set -ex
MODEL_ARGS=(
   --disable-bias-linear --qk-layernorm --group-query-attention
   --num-attention-heads 32 --num-query-groups 4 --kv-channels 128
   --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144
   --normalization RMSNorm --position-embedding-type rope --rotary-percent 1.0 --swiglu
   --untie-embeddings-and-output-weights --vocab-size 151936 --rotary-base 1000000
   --moe-ffn-hidden-size 768 --moe-router-score-function softmax --moe-token-dispatcher-type alltoall
   --moe-router-topk 8 --moe-layer-freq '[1]*48' --num-experts 128 --moe-grouped-gemm
   --moe-token-drop-policy probs --moe-router-dtype fp32 --moe-permute-fusion --moe-aux-loss-coeff 0
)
python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate ${MODEL_ARGS[@]} \
   --hf-checkpoint /root/Qwen3-30B-A3B --ref-load /root/Qwen3-30B-A3B_torch_dist \
   --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192 \
   --global-batch-size 256 --balance-data \
   --tensor-model-parallel-size 4 --sequence-parallel --expert-model-parallel-size 8 \
   --expert-tensor-parallel-size 1 \
   --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
   --use-dynamic-batch-size --max-tokens-per-gpu 16384 --log-probs-chunk-size 1024 \
   --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.00 --entropy-coef 0.00 \
   --optimizer adam --lr 1e-6 --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d \
   --use-precision-aware-optimizer \
   --rollout-num-gpus-per-engine 8 --sglang-mem-fraction-static 0.7 \
   --attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 \
   --attention-softmax-in-fp32 --attention-backend flash
