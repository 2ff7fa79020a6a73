"""Output of a run: reports and their destinations, metrics, the live view, plots, pages."""
