"""Rehearsals: single ranks of a large job, each alone on one device, or on fake tensors on none.

The rank runs Megatron Core's own code in a process group that sends nothing. It has the job's true
shapes, schedule and optimizer shards. It has no communication, no bubbles, no memory of NCCL.
"""
