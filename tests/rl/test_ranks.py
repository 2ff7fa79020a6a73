"""Ranks of the scores of a population, worked by hand."""

import numpy as np
import pytest

from parcade.rl.ranks import centered_ranks

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("scores", "ranks"),
    [
        ([3.0, -1.0, 7.0], [0.0, -0.5, 0.5]),
        ([1.0, 1.0, 2.0], [-0.25, -0.25, 0.5]),  # equal scores have the mean of ranks 0 and 1
        ([2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]),
        ([5.0, 4.0], [0.5, -0.5]),
        ([5.0], [0.0]),  # one member has nothing to be compared with
        ([], []),
    ],
)
def test_ranks_are_scaled_to_half_and_minus_half(scores, ranks):
    assert centered_ranks(np.array(scores)).tolist() == ranks
