#!/bin/bash
COMMON="--model_name_or_path gpt2 --output_dir out --per_device_train_batch_size 8 --bf16"
if [ "$GPU" = v100 ]; then
  COMMON="$COMMON --fp16"
fi
python run_clm.py $COMMON --gradient_checkpointing --do_train
