"""How gradients meet: the gradient-exchange seam and its implementations."""
