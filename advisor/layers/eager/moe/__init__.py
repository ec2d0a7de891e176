"""Experts of eager torch: torchtitan's and transformers'."""
