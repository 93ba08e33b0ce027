"""Text formats: scores, durations and counts for people."""

from __future__ import annotations

import math


def format_score(value: float) -> str:
    """Format a score with four digits; a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.4f}"


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units; a question mark for NaN."""
    if math.isnan(seconds):
        return "?"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


def count_noun(count: int, noun: str) -> str:
    """Format a count with its noun: `1 trial`, `2 trials`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
