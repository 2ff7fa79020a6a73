"""Consoles on several CPU cores: in rounds that all of them play, or one by one from a queue."""
