"""What a trial is, what it gave, and the folder that holds it."""
