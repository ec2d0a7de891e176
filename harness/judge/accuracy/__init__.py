"""Predicted beside measured over many runs."""
