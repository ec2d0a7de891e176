"""Measures times, memory and the machine's state while a training step runs, with torch."""
