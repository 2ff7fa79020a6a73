"""How functions become machine code: decorators, a cache on disk, and processes that fill it."""
