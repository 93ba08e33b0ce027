"""Exact nearest-neighbour retrieval and its metrics."""
