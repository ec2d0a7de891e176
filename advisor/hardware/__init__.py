"""GPUs and machines: datasheets, and the efficiencies that were fitted on them."""
