"""One file a command: its flags and what it does with them. ``cli.py`` has the table."""
