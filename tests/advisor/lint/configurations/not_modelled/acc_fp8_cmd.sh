accelerate launch --num_processes 8 --mixed_precision fp8 --fp8_backend te --fp8_use_autocast_during_eval false \
  --use_fsdp --fsdp_version 2 --fsdp_cpu_offload true --fsdp_mixed_precision_policy fp32 \
  --dynamo_backend cudagraphs \
  train.py --model_name_or_path x --per_device_train_batch_size 1 --output_dir o --gradient_checkpointing_ratio 0.5
