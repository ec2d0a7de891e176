"""LLaMA-Factory: Hugging Face's Trainer with adapters and checkpointing by default."""
