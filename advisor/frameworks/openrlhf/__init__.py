"""OpenRLHF: reinforcement learning on DeepSpeed and vLLM."""
