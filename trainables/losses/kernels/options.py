"""By which rule do proxies become similarities to classes, and these logits?"""

from __future__ import annotations

from dataclasses import dataclass

from trainables.losses.blocks import Budget, Reducer


@dataclass(frozen=True)
class Rule:
    """How proxies become class similarities and these become logits.

    Args:
        normalise: Cosine similarities; otherwise plain inner products.
        centre_temperature: With several proxies per class: the softness of the weights of
            SoftTriple; None takes the nearest proxy (sub-centres).
        circle_margin: The self-paced weights [S + m]_+ of Circle, h = [S + m]_+ (S - m), taken
            as constants in backward; None is h = S.
        with_spread: Also sum the distances among each trained class's proxies (K > 1).
    """

    normalise: bool = True
    centre_temperature: float | None = None
    circle_margin: float | None = None
    with_spread: bool = False


@dataclass(frozen=True)
class Options:
    """One call: its rule, whether the sum of logits is wanted, memory, and other shards."""

    rule: Rule
    with_total: bool
    budget: Budget
    reducer: Reducer
