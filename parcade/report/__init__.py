"""Output of a run: timing scopes, metrics, the live view, plots."""
