"""What a run has under it: facts about the machine, its devices and threads, freed memory, and time."""
