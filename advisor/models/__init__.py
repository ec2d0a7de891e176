"""The shape of a model in Megatron's names, and where it comes from: presets, YAML, config.json."""
