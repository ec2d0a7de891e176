"""A rank of Megatron Core alone: no other rank sends it anything."""
