"""Real torch layers on fake tensors: what torchtitan's and transformers' blocks keep and need."""
