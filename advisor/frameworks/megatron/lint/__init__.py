"""Reads and checks configurations of Megatron-LM, Megatron Bridge and NeMo."""
