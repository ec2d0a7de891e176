"""Ranks of Megatron Core, alone in their process group, for more than a rehearsal."""
