"""Heads of other packages on fake tensors: what their own code keeps and needs."""
