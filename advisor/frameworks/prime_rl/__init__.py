"""prime-rl: reinforcement learning on FSDP2 and vLLM, on GPUs of their own."""
