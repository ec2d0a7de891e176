"""Measures times, memory and the state of the machine while a training step runs, with torch.
Results have the types of harness.trial.result."""
