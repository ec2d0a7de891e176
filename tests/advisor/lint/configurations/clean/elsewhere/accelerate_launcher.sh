LAUNCH="$1"
accelerate launch $FSDP_ARGS train.py --output_dir out --per_device_train_batch_size 1 \
  --gradient_checkpointing true --bf16 true
