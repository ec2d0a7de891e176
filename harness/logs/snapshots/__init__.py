"""Memory snapshots as PyTorch writes them, read without running anything that they hold."""
