"""The TIA: a log of register accesses, replayed for collisions and pictures. Read `chip.py` first."""
