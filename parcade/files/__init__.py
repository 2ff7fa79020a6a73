"""Files: the run directory, locks, where results are written, and saved states."""
