"""Backend `command`: any training command, its setting put in as flags, its log read."""
