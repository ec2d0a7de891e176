"""The best that can exist in a stated space of decisions, and the proof of it."""
