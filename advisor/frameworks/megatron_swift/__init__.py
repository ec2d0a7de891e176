"""Megatron-SWIFT: ms-swift on Megatron Core, with recompute of core attention by default."""
