"""Agents that play each other on one console: players, matches, ratings. Read `tournament.py` first."""
