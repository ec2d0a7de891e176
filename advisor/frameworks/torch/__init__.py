"""What the PyTorch stacks share, and plain FSDP2."""
