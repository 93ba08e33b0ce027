"""Summary of the claims of a search space: the kind of each test and its subject."""

from __future__ import annotations

from search_spaces.space import SearchSpace


def list_claim_kinds(space: SearchSpace) -> set[tuple[str, str]]:
    """Return (kind of the test, hyperparameter or other loss) of every claim."""
    return {
        (type(c.test).__name__, str(getattr(c.test, "knob", getattr(c.test, "other", ""))))
        for c in space.claims
    }
