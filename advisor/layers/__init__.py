"""What a layer computes, moves, communicates and keeps; one folder per family of layers."""
