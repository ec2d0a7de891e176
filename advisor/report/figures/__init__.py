"""Pictures of an answer for papers and slides: one file a kind of `--plot-kind`."""
