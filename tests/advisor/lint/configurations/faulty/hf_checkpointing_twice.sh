#!/bin/bash
accelerate launch --use_fsdp --fsdp_version 2 --fsdp_activation_checkpointing true \
  --num_processes 8 run_clm.py --model_name_or_path gpt2-xl --output_dir out \
  --per_device_train_batch_size 4 --bf16 --gradient_checkpointing True 2>&1 | tee clm.log
