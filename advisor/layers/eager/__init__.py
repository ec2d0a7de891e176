"""What layers in eager torch have in common."""
