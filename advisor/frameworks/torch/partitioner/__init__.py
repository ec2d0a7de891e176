"""What torch.compile's partitioner keeps of a layer under a memory budget."""
