"""Constants of single kernels, fitted on published benchmarks of kernels and our own samples."""
