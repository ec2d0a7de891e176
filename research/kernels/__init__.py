"""Constants of kernels and collectives, fitted on published benchmarks and our own samples."""
