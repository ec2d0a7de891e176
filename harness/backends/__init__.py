"""What runs a training step: native torch, Megatron Core, or any command."""
