"""verl: reinforcement learning on FSDP or Megatron, with rollouts on the same GPUs."""
