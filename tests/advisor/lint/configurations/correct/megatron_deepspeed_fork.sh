#!/bin/bash
# Megatron-DeepSpeed, whose --checkpoint-activations is its own
DIR=`pwd`
config_json="ds_config_gpt.json"
cat <<EOT > $config_json
{
  "train_batch_size": 256,
  "train_micro_batch_size_per_gpu": 4,
  "steps_per_print": 10,
  "zero_optimization": {
    "stage": 1
  },
  "gradient_clipping": 1.0,
  "bf16": {
    "enabled": true
  },
  "wall_clock_breakdown": false
}
EOT
deepspeed --num_gpus 8 ${DIR}/pretrain_gpt.py \
    --tensor-model-parallel-size 1 --no-pipeline-parallel \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
    --seq-length 2048 --max-position-embeddings 2048 \
    --micro-batch-size 4 --global-batch-size 256 \
    --bf16 --checkpoint-activations --deepspeed-activation-checkpointing \
    --zero-stage 1 --deepspeed --deepspeed_config ${config_json} &>> log.txt
