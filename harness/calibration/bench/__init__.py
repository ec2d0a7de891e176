"""Measures single kernels on the device at hand: which, in which order, and how long they take."""
