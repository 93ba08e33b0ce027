"""What may be searched: one space per loss."""

from search_spaces.aliases import Canonical, aliases, canonical
from search_spaces.extra import EXTRA, extra_knob
from search_spaces.registry import SPACES, VARIANTS, get_space
from search_spaces.training import TRAINING_KNOBS

__all__ = [
    "EXTRA",
    "SPACES",
    "TRAINING_KNOBS",
    "VARIANTS",
    "Canonical",
    "aliases",
    "canonical",
    "extra_knob",
    "get_space",
]
