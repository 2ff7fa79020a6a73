"""Pure functions of reinforcement learning on ``[T, B]`` tensors, written to be read next to the papers.

The package is independent of environments, networks, optimisers and other processes.
"""
