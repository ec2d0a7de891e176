"""What every other part rests on: limits of what is read, documents and lines of logs."""
