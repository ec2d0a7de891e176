"""Megatron Core's layers as operators."""
