"""Results over sets of games: the sets, published scores and statistics of many runs."""
