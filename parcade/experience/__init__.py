"""Experience sources, which produce batches: the interface and its implementations."""
