accelerate launch --num_processes 8 --use_fsdp --mixed_precision bf16 \
  --fsdp_version 2 --fsdp_offload_params true --fsdp_reshard_after_forward true \
  --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP \
  --fsdp_transformer_layer_cls_to_wrap Qwen3DecoderLayer \
  --dynamo_backend inductor --dynamo_mode reduce-overhead \
  run_clm_no_trainer.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 \
  --output_dir out
