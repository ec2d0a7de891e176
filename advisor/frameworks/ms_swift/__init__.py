"""ms-swift: Hugging Face's Trainer, or Megatron Core, with adapters by default."""
