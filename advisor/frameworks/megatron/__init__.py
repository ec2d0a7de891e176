"""Megatron-LM, Megatron Bridge and NeMo."""
