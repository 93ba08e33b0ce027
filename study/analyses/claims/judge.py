"""Does what the papers say hold here?

Every claim becomes a probability: by sweeps that measured it or by functions drawn from the
surrogate (claims about a knob), by confirmed seeds (claims about losses). `supported` needs 95 %,
`contradicted` at most 5 %; all between is `cannot tell`, as is every claim whose values were not
searched or not sampled.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from search_spaces.claims import (
    BetterLoss,
    BetterValue,
    Claim,
    CostRatio,
    FasterLoss,
    GoodValue,
    HigherMetric,
    Sensitive,
    StableRange,
)
from study.analyses import knob_claims, loss_claims, sweep_claims
from study.analyses.claimed import KnobTest, words
from study.analyses.loss_model import LossModel
from study.analyses.surrogate import Refusal
from study.analyses.verdicts import Judgement, undecided, verdict_of
from study.table import TrialTable


def analyse(table: TrialTable, models: Mapping[str, LossModel], *, seed: int = 0) -> pd.DataFrame:
    """One row per claim of every loss of the study.

    Returns `loss`, `claim`, `statement`, `source`, `test`, `verdict`, `probability`, `basis` (what
    decided: `sweep`, `model`, the losses' `trials`, or `nothing`), `evidence` and `settle`: what
    more trials would have to be, empty when the verdict stands.
    """
    rows = []
    for loss, space in table.spaces.items():
        for claim in space.claims:
            found = judge(table, models, loss, claim, seed=seed)
            told = (loss, claim.name, claim.statement, claim.source, how(claim, loss))
            given = (found.verdict, found.probability, found.basis, found.evidence, found.settle)
            rows.append((*told, *given))
    columns = ["loss", "claim", "statement", "source", "test"]
    given_columns = ["verdict", "probability", "basis", "evidence", "settle"]
    return pd.DataFrame(rows, columns=[*columns, *given_columns])


def judge(
    table: TrialTable, models: Mapping[str, LossModel], loss: str, claim: Claim, *, seed: int = 0
) -> Judgement:
    """Put one claim to the trials."""
    test = claim.test
    if isinstance(test, BetterLoss | FasterLoss | CostRatio | HigherMetric):
        other = host_of(loss) if test.other == "HOST" else test.other
        if other not in table.spaces:
            return undecided(f"{other} is not part of this study.", f"Add {other} to the study.")
        probability, evidence = loss_claims.weigh(table, models, loss, other, test, seed=seed)
        settle = "More confirmation seeds of both losses."
        return verdict_of(probability, evidence, settle, basis="trials")
    space = table.spaces[loss]
    if test.knob not in space.searched:
        fixed = space.fixed.get(test.knob)
        reason = f"{test.knob} was not searched" + (
            "." if fixed is None else f" (fixed at {fixed})."
        )
        return undecided(reason, f"Search {test.knob}.")
    tolerance = models[loss].tolerance
    if not np.isfinite(tolerance):
        return undecided("No tolerance is known: no seed was repeated.", "Repeat some seeds.")
    settle = f"A sweep of {test.knob} from the best point with repeated seeds."
    direct = sweep_claims.judge(table, loss, test, tolerance, settle=settle, seed=seed)
    return sweep_claims.combine(direct, _modelled(models[loss], test, settle))


def _modelled(model: LossModel, test: KnobTest, settle: str) -> Judgement:
    if isinstance(model.surrogate, Refusal):
        return undecided(model.surrogate.reason, settle)
    if model.no_curves is not None:
        return undecided(model.no_curves.reason, settle)
    return knob_claims.judge(model.surrogate, test, model.tolerance, settle)


def how(claim: Claim, loss: str) -> str:
    """How the claim of a loss is tested, in words."""
    test = claim.test
    rival = host_of(loss) if getattr(test, "other", "") == "HOST" else getattr(test, "other", "")
    match test:
        case StableRange():
            low = "the low end" if test.low is None else f"{test.low:g}"
            high = "the high end" if test.high is None else f"{test.high:g}"
            return f"{test.knob} from {low} to {high} costs at most the tolerance"
        case GoodValue():
            value = f"{test.value:.3g}" if isinstance(test.value, float) else test.value
            return f"{test.knob} = {value} costs at most the tolerance"
        case BetterValue():
            return f"{test.knob}: {words(test.better)} beats {words(test.worse)} by the tolerance"
        case Sensitive():
            return f"{test.knob} costs more than the tolerance somewhere in its range"
        case BetterLoss():
            return f"tuned score above that of {rival}"
        case FasterLoss():
            return f"{loss_claims.RISEN:.0%} of its own rise in fewer epochs than {rival}"
        case CostRatio():
            return f"seconds per epoch at most {test.at_most:g} times those of {rival}"
        case HigherMetric():
            return f"{test.metric} above that of {rival}"


def host_of(loss: str) -> str:
    """The host of a plug-in: `proxy_anchor` of `proxy_anchor+synthesis`."""
    return loss.split("+", 1)[0]
