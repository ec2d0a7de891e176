"""Heads of post-training: output layer, and log-probabilities, entropy or loss, as each package
computes them. Each implementation is a function that returns operators, from hidden states or from
logits; `implementations` has them by name."""
