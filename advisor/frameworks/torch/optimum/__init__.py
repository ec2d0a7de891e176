"""The best that block-by-block checkpoints of torch can do within a memory budget, and its code."""
