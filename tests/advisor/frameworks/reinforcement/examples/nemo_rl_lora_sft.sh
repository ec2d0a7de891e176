uv run examples/run_sft.py --config nemo_rl_base.yaml \
  policy.model_name=meta-llama/Llama-3.1-8B \
  policy.max_total_sequence_length=4096 \
  policy.train_micro_batch_size=2 \
  policy.train_global_batch_size=128 \
  policy.dtensor_cfg.activation_checkpointing=true \
  ++policy.dtensor_cfg.lora_cfg.enabled=true \
  ++policy.dtensor_cfg.lora_cfg.dim=16 \
  policy.sequence_packing.enabled=true \
  cluster.gpus_per_node=8
