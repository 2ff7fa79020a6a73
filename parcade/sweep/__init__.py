"""Searching for good settings: spaces, trials on Ray Tune, importance of settings, report."""
