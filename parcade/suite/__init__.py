"""Results over sets of games: the sets, their trainings, published scores, statistics, report."""
