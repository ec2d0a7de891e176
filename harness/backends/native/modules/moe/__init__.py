"""Mixture of experts in plain torch (megatron-core 0.16.1 transformer/moe/)."""
