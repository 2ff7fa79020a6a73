"""Who runs where: launching, signals, threads. No reinforcement learning in here."""
