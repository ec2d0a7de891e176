accelerate launch --config_file fsdp.yaml --main_process_port 29511 --machine_rank 0 run_clm.py \
  --config_name gpt2 --tokenizer_name gpt2 --dataset_name openwebtext --streaming \
  --do_train --max_steps 100000 --block_size 1024 \
  --per_device_train_batch_size 16 --gradient_accumulation_steps 4 \
  --bf16 --tf32 true --torch_compile --learning_rate 6e-4 --warmup_steps 2000 --weight_decay 0.1 \
  --adam_beta1 0.9 --adam_beta2 0.95 --max_grad_norm 1.0 --lr_scheduler_type cosine \
  --logging_steps 10 --save_steps 5000 --save_total_limit 2 --output_dir out --overwrite_output_dir \
  --report_to wandb --run_name gpt2 --dataloader_num_workers 8 --ddp_timeout 3600 \
  --gradient_checkpointing False --fp16 0 --optim adamw_torch_fused --seed 3
