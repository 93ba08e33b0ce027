"""The losses of the papers, by name."""
