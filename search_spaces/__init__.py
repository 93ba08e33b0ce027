"""Search spaces: hyperparameters, published points and paper claims of each loss.

The names in `__all__` are the public API::

    import search_spaces

    space = search_spaces.get_space("proxy_anchor")
    space.searched_params, space.published, space.claims

They are imported on first access, so `import search_spaces` does not import Optuna.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from search_spaces.claims import (
        BetterLoss,
        BetterValue,
        CostRatio,
        FasterLoss,
        GoodValue,
        HigherMetric,
        PaperClaim,
        Sensitive,
        StableRange,
    )
    from search_spaces.equivalence import CanonicalForm, canonical_form, group_equivalent_losses
    from search_spaces.registry import SPACE_VARIANTS, SPACES, get_space
    from search_spaces.shared.optional import OPTIONAL_PARAMS, find_optional_param
    from search_spaces.shared.training import TRAINING_PARAMS
    from search_spaces.space import Choice, Float, Hyperparameter, Int, PublishedPoint, SearchSpace

__all__ = [
    "OPTIONAL_PARAMS",
    "SPACES",
    "SPACE_VARIANTS",
    "TRAINING_PARAMS",
    "BetterLoss",
    "BetterValue",
    "CanonicalForm",
    "Choice",
    "CostRatio",
    "FasterLoss",
    "Float",
    "GoodValue",
    "HigherMetric",
    "Hyperparameter",
    "Int",
    "PaperClaim",
    "PublishedPoint",
    "SearchSpace",
    "Sensitive",
    "StableRange",
    "canonical_form",
    "find_optional_param",
    "get_space",
    "group_equivalent_losses",
]

_MODULE_BY_NAME = {
    "OPTIONAL_PARAMS": "search_spaces.shared.optional",
    "SPACES": "search_spaces.registry",
    "SPACE_VARIANTS": "search_spaces.registry",
    "TRAINING_PARAMS": "search_spaces.shared.training",
    "BetterLoss": "search_spaces.claims",
    "BetterValue": "search_spaces.claims",
    "CanonicalForm": "search_spaces.equivalence",
    "Choice": "search_spaces.space",
    "CostRatio": "search_spaces.claims",
    "FasterLoss": "search_spaces.claims",
    "Float": "search_spaces.space",
    "GoodValue": "search_spaces.claims",
    "HigherMetric": "search_spaces.claims",
    "Hyperparameter": "search_spaces.space",
    "Int": "search_spaces.space",
    "PaperClaim": "search_spaces.claims",
    "PublishedPoint": "search_spaces.space",
    "SearchSpace": "search_spaces.space",
    "Sensitive": "search_spaces.claims",
    "StableRange": "search_spaces.claims",
    "canonical_form": "search_spaces.equivalence",
    "find_optional_param": "search_spaces.shared.optional",
    "get_space": "search_spaces.registry",
    "group_equivalent_losses": "search_spaces.equivalence",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first access (PEP 562)."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names of the module, including those not imported yet."""
    return sorted({*globals(), *__all__})
