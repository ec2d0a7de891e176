"""The native model: Megatron's modules in plain torch."""
