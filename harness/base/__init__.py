"""Helpers for the rest of the harness: collections, durations, and temporary patches of objects."""
