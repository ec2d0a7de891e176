"""Which operators are replayed, and in which order a pipeline stage runs forwards and backwards."""
