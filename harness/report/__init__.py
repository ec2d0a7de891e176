"""Reports of a run: for people, CI systems and other programs."""
