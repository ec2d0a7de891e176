"""One training step of an evaluated setting as data: passes, their times, and the live memory."""
