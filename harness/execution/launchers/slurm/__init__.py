"""Trials as jobs of a Slurm cluster."""
