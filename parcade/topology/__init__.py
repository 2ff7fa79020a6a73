"""Systems of many parts: actors, learners, parameter servers and replays, and who hands what to whom."""
