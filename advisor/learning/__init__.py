"""What measured runs say of the predictions for jobs like theirs, and which choices are a toss."""
