FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=0 MASTER_ADDR=192.168.0.1 MASTER_PORT=29500 llamafactory-cli train \
  --model_name_or_path meta-llama/Meta-Llama-3-8B --stage sft --do_train --finetuning_type full \
  --deepspeed examples/deepspeed/ds_z3_config.json --dataset identity --template llama3 --cutoff_len 2048 \
  --output_dir saves/x --per_device_train_batch_size 1 --gradient_accumulation_steps 2 \
  --learning_rate 1.0e-5 --num_train_epochs 3.0 --lr_scheduler_type cosine --warmup_ratio 0.1 --bf16 \
  --enable_liger_kernel True --flash_attn fa2 --save_strategy epoch --val_size 0.1 --eval_strategy epoch \
  --neftune_noise_alpha 5 --logging_steps 5 --report_to none
