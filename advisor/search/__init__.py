"""The answer to a request: evaluate, search, rank, find what else would help."""
