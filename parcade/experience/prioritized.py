"""A sum tree for sampling batches in proportion to priority.

Paper: Schaul 2016, "Prioritized Experience Replay", arXiv 1511.05952, section 3.3 and appendix B.2.1.
"""

from __future__ import annotations

import numpy as np


class SumTree:
    """A binary tree of sums over priorities ``[capacity]`` float64. Both operations are vectorised.

    The tree is one array: node i has children 2i and 2i + 1, the root is node 1, the leaves are the last
    ``width`` nodes.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.width = 1 << max(1, (capacity - 1).bit_length())
        self.nodes = np.zeros(2 * self.width)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self.nodes[1])

    @property
    def leaves(self) -> np.ndarray:
        """The priorities ``[capacity]``, a view."""
        return self.nodes[self.width : self.width + self.capacity]

    def update(self, indices: np.ndarray, values: np.ndarray | float) -> None:
        """Set priorities. For repeated indices the last value counts. Shapes ``[n]``."""
        if not len(indices):
            return
        nodes = np.asarray(indices, np.int64) + self.width
        self.nodes[nodes] = values
        while nodes[0] > 1:
            nodes >>= 1  # with repetitions: to add a sum again costs less than to find those that are equal
            self.nodes[nodes] = self.nodes[2 * nodes] + self.nodes[2 * nodes + 1]

    def sample(self, shares: np.ndarray) -> np.ndarray:
        """Return the index whose segment of the cumulative sum contains each fraction of the total.

        Shapes: shares ``[n]`` in [0, 1); returns ``[n]`` int64.
        """
        wanted = shares * self.total
        nodes = np.ones(len(shares), np.int64)
        while nodes[0] < self.width:
            left = 2 * nodes
            goes_right = wanted >= self.nodes[left]
            # Rounding may give a value beyond the last priority: never descend into an empty subtree.
            goes_right &= self.nodes[left + 1] > 0
            wanted = np.where(goes_right, wanted - self.nodes[left], wanted)
            nodes = left + goes_right
        return nodes - self.width
