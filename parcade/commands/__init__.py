"""The commands, one file each: flags and implementation. ``cli.py`` has the table of commands."""
