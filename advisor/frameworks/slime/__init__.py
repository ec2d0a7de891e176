"""slime: reinforcement learning on Megatron and SGLang."""
