"""Translate ROMs to machine code: trace the code, write LLVM assembly, compile it for CPU or GPU."""
