"""Megatron Core without a GPU: its code runs on fake tensors, and live storages are counted.

`saved_bytes_per_layer` counts what autograd keeps of one layer, `activation_peak` / `trace_peak`
run the real pipeline schedule of one rank. Nothing here knows the advisor.
"""
