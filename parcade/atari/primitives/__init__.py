"""What Numba lacks: atomic operations, vector instructions, and meetings of a GPU's lanes."""
