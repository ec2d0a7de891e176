"""What goldens are, and the files that hold them."""
