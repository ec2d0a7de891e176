"""Ranks the activation-recompute settings of a training job by memory and time, before it runs."""
