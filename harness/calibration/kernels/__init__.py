"""Constants of kernels and collectives, fitted on published micro-benchmarks."""
