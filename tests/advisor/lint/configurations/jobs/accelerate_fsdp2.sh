export HF_HOME=/x
accelerate launch --config_file fsdp2.yaml train.py --model_name_or_path Qwen/Qwen3-8B --output_dir o --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --gradient_checkpointing true --max_length 2048 --torch_compile --attn_implementation flash_attention_2 --optim adamw_bnb_8bit
