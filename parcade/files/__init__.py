"""Files: the run directory, locks, where results are written, what others wrote, and saved states."""
