#!/bin/bash
source "scripts/models/qwen3-4B.sh"
SFT_ARGS=( --rollout-function-path slime.rollout.sft_rollout.generate_rollout --prompt-data /data/openhermes.parquet --input-key messages
   --num-epoch 3 --rollout-batch-size 128 --global-batch-size 128 --loss-type sft_loss --calculate-per-token-loss
   --disable-compute-advantages-and-returns --debug-train-only )
PERF_ARGS=( --tensor-model-parallel-size 1 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1
   --expert-model-parallel-size 1 --expert-tensor-parallel-size 1
   --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
   --use-dynamic-batch-size --max-tokens-per-gpu 9216 )
ray job submit --address="http://127.0.0.1:8265" -- python3 train_async.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 \
   ${MODEL_ARGS[@]} ${SFT_ARGS[@]} ${PERF_ARGS[@]} --optimizer adam --lr 1e-5 --attention-backend flash --attention-dropout 0.0 --hidden-dropout 0.0
