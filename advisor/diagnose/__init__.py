"""Known failures in a training log: found, explained from their numbers, with what helps."""
