"""Gradient exchange between processes: the interface and its implementations."""
