"""Consoles on a GPU: thread bodies, the code that launches them, and the classes that hold their arrays."""
