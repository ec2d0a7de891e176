"""The command `advise`."""
