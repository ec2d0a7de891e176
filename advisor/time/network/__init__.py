"""Communication: what joins which ranks, and how long they exchange."""
