"""Constants of single kernels, fitted on published and measured times of these kernels alone."""
