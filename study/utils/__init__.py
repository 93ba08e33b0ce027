"""Helpers that are independent of studies: paths, files, processes, formatting."""
