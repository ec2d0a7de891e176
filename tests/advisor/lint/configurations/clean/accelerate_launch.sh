accelerate launch --num_processes 8 --num_machines 1 --mixed_precision bf16 --use_fsdp \
  --fsdp_sharding_strategy FULL_SHARD --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP \
  --fsdp_state_dict_type SHARDED_STATE_DICT --fsdp_offload_params false \
  --main_process_port 29501 --dynamo_backend no \
  run_clm_no_trainer.py --model_name_or_path gpt2-xl --dataset_name wikitext \
  --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --block_size 1024 \
  --output_dir out --with_tracking --report_to wandb --checkpointing_steps epoch
