"""Systems of actors, learners, parameter servers and replays, and the drivers that connect them."""
