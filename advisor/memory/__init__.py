"""Bytes of a rank: a fold over operators, the schedule, and the allocator."""
