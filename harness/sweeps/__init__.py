"""Recompute settings, micro batches and layouts searched by measurement, with Optuna."""
