accelerate launch --use_deepspeed --zero_stage 2 --offload_optimizer_device nvme \
  --gradient_accumulation_steps 4 --mixed_precision bf16 --num_processes 8 \
  examples/scripts/sft.py --model_name_or_path facebook/opt-350m --load_in_4bit --use_peft \
  --lora_r 64 --lora_alpha 16 --per_device_train_batch_size 4 --gradient_checkpointing --output_dir out
