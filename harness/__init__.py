"""Runs, measures and judges the settings that the advisor ranks."""
