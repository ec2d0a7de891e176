"""NeMo AutoModel: FSDP2 over transformers' layers, by a YAML file of classes."""
