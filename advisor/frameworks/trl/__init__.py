"""TRL: Hugging Face's Trainer with losses, adapters and rollouts of its own."""
