"""The consoles on a GPU: thread bodies, what launches them, and the classes that hold their arrays."""
