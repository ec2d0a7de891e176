"""One rank of a job under CUDA graphs, alone in its process group."""
