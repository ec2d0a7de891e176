"""The most valuable measurements first, within a time budget."""
