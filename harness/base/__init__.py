"""Helpers for the rest of the harness: collections and durations."""
