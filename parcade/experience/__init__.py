"""Where batches come from: the experience-source seam and its implementations."""
