"""Model shapes out of a Hugging Face config.json, one module a family of keys."""
