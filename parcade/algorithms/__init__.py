"""One file an algorithm; ``table.py`` lists them."""
