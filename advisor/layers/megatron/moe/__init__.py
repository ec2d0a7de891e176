"""Mixture of experts: router, token dispatch, experts, combine (megatron-core 0.16.1)."""
