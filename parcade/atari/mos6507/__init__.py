"""The 6507: the table of its opcodes, what its operations do, and the interpreter."""
