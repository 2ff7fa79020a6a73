"""Pure maths of reinforcement learning on ``[T, B]`` tensors; to be read with the papers in hand.

Nothing in here knows an environment, a network, an optimiser or another process.
"""
