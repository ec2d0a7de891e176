"""Which settings Megatron refuses, breaks on, ignores or means differently, and why."""
