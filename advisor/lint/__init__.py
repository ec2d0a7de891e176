"""Configurations as they are written: shell, YAML, JSON, TOML and Python, with line and column."""
