"""One row an option of Megatron: its name, default, releases, spellings, and what of ours it means."""
