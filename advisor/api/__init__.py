"""What `import advisor` gives: the calls that a program makes, with Python types."""
