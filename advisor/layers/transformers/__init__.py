"""Layers of Hugging Face's transformers as operators."""
