"""The step of one row as files that other tools open."""
