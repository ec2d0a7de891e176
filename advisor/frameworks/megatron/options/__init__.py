"""One row an option of Megatron: name, default, releases, spellings, what of ours it means."""
