"""The algorithms, one per file; ``table.py`` lists them."""
