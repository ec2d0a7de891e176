"""Times, memory and the state of the machine while a training step runs; the torch side of a
measurement. What it finds goes into harness.trial.result's types."""
