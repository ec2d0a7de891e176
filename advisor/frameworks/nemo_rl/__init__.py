"""NeMo-RL: reinforcement learning on AutoModel (DTensor) or Megatron Bridge."""
