"""Rehearsals: single ranks of a large job, each run alone on one GPU, or on fake tensors. The rank
runs Megatron Core's own code in a process group that sends nothing. It has the job's true shapes,
schedule and optimizer shards. It has no communication, no bubbles, no memory of NCCL."""
