"""Hugging Face's Trainer with Accelerate."""
