"""Processes on hosts: launchers, host files, signals, heartbeats, stacks and Slurm."""
