"""What a run tells: timing scopes, metrics, the live view, plots."""
