"""Oracles: other people's running code that the advisor's numbers are held against."""
