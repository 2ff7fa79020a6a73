"""A ROM translated to machine code: found by tracing, written as LLVM assembly, compiled for the CPU or the GPU."""
