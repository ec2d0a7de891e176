"""Results of a run handed to experiment trackers, each through its own client."""
