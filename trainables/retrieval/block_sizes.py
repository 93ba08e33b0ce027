"""Memory limits of a search: how many queries are processed at a time.

Other modules read the limits through this module, so that a test can lower them in one place.
"""

from __future__ import annotations

BLOCK_BYTES = 128 * 2**20
"""Bytes of float32 similarities held at a time."""

LIST_BYTES = 256 * 2**20
"""Bytes of candidate lists held at a time; a few large classes make these lists long."""

CANDIDATE_BYTES = 128
"""Bytes per candidate: value, index, exact value, flags, and the copies that sorting makes."""


def choose_block_rows(n_rows: int, n_items: int, dim: int, count: int) -> int:
    """Return how many queries to process at a time.

    Args:
        n_rows: Number of queries.
        n_items: Number of gallery items.
        dim: Dimension of the vectors.
        count: Number of candidates per query.
    """
    by_products = BLOCK_BYTES // (4 * max(n_items, dim))
    return max(1, min(n_rows, by_products, limit_list_rows(count)))


def limit_list_rows(count: int) -> int:
    """Return how many queries may hold lists of `count` candidates at a time."""
    return max(1, LIST_BYTES // (CANDIDATE_BYTES * count))
