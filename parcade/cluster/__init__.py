"""Processes on hosts: launchers, signals, heartbeats, Ray and Slurm. Contains no reinforcement learning."""
