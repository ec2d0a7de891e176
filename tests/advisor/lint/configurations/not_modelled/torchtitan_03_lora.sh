torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b_lora \
  --training.local_batch_size 1 --training.seq_len 8192 \
  --parallelism.data_parallel_shard_degree 8 \
  --parallelism.fsdp_reshard_after_forward always \
  --training.enable_cpu_offload \
  activation_checkpoint:full
