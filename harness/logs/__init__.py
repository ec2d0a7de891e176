"""What the logs of training frameworks say: steps, peaks, arguments, and how the run ended."""
