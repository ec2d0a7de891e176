"""What a layer computes, moves, communicates and keeps; one folder a family of layers."""
