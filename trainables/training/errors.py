"""Errors of a training run."""

from __future__ import annotations


class DivergedError(Exception):
    """The loss or an embedding is NaN or infinite."""
