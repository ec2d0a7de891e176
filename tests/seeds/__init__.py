"""Public guides on activation recompute, walked through: everything they name is answered."""
