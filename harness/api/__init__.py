"""What `import harness` gives: the commands as calls with Python types and results."""
