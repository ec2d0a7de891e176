"""How each framework spells, refuses and carries out recompute: one folder per framework."""
