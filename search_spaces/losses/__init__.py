"""One search space per loss."""
