"""Trials are run: started, watched, stopped, concluded."""
