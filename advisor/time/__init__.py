"""Seconds of a step: a fold over operators on a machine."""
