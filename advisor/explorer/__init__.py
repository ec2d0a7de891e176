"""The explorer: one HTML file with every setting of a job and of the jobs near it, to look at."""
