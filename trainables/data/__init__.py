"""Data sets by name, decoded once and split by class."""
