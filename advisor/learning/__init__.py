"""What measured runs say about predictions for jobs like theirs, and which two rows to measure."""
