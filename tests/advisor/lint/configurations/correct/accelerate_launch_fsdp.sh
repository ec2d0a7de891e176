#!/bin/bash
MODEL=${MODEL:-Qwen/Qwen2.5-7B}
ARGS="--model_name_or_path $MODEL --output_dir out/$(basename $MODEL) --bf16 --per_device_train_batch_size 1"
if [ -n "$SMOKE" ]; then ARGS="$ARGS --max_steps 5"; fi
accelerate launch --use_fsdp --fsdp_version 2 --num_processes 8 --mixed_precision bf16 \
  --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_reshard_after_forward true \
  --fsdp_activation_checkpointing true \
  trl/scripts/sft.py $ARGS --gradient_accumulation_steps 16 --max_length 4096 --gradient_checkpointing False
