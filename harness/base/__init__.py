"""What the harness builds on: questions about many values, and patches for a block."""
