"""axolotl: Hugging Face's Trainer under the names of one YAML file."""
