"""Launch scripts and configurations as words with places: shell, YAML, JSON, TOML and Python."""
