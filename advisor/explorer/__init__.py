"""The explorer: one HTML file that shows every setting of a job and of the jobs near it."""
