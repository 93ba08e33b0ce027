"""What may be searched: one space per loss."""

from search_spaces.registry import SPACES, VARIANTS, get_space

__all__ = ["SPACES", "VARIANTS", "get_space"]
