"""Megatron Core without a GPU: its code runs on fake tensors, and live storages are counted.
`saved_bytes_per_layer` counts what autograd keeps of one layer. Nothing here knows the advisor."""
