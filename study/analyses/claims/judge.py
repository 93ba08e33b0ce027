"""Do the claims of the papers hold in this study?

Every claim gets a probability: claims about a hyperparameter from sweeps that measured it or from
functions drawn from the surrogate, claims about losses from confirmed seeds. `supported` needs
95 %, `contradicted` at most 5 %; everything in between is `cannot tell`, as is every claim whose
values were not searched or sampled.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

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
from study.analyses.claims import by_model, by_sweep, by_trials
from study.analyses.claims.values import ParamTest, format_side
from study.analyses.claims.verdict import ClaimVerdict, undecided_verdict, verdict_from_probability
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.surrogate import Refusal
from study.trials.table import TrialTable

CLAIM_COLUMNS = (
    "loss",
    "claim",
    "statement",
    "source",
    "test",
    "verdict",
    "probability",
    "basis",
    "evidence",
    "settle",
)


def analyse_claims(
    table: TrialTable, models: Mapping[str, LossModel], *, seed: int = 0
) -> pd.DataFrame:
    """Judge every claim of every loss of the study, one row each.

    Returns:
        `loss`, `claim`, `statement`, `source`, `test`, `verdict`, `probability`, `basis` (what
        decided: `sweep`, `model`, the losses' `trials`, or `nothing`), `evidence` and `settle`:
        which further trials would decide, empty if the verdict stands.
    """
    rows = []
    for loss, space in table.spaces.items():
        for claim in space.claims:
            v = judge_claim(table, models, loss, claim, seed=seed)
            claimed = (loss, claim.name, claim.statement, claim.source, describe_test(claim, loss))
            rows.append((*claimed, v.verdict, v.probability, v.basis, v.evidence, v.settle))
    return pd.DataFrame(rows, columns=list(CLAIM_COLUMNS))


def judge_claim(
    table: TrialTable,
    models: Mapping[str, LossModel],
    loss: str,
    claim: PaperClaim,
    *,
    seed: int = 0,
) -> ClaimVerdict:
    """Judge one claim by the trials."""
    test = claim.test
    if isinstance(test, BetterLoss | FasterLoss | CostRatio | HigherMetric):
        other = host_loss_name(loss) if test.other == "HOST" else test.other
        if other not in table.spaces:
            return undecided_verdict(
                f"{other} is not part of this study.", f"Add {other} to the study."
            )
        probability, evidence = by_trials.estimate_claim_probability(
            table, models, loss, other, test, seed=seed
        )
        settle = "Run more confirmation seeds of both losses."
        return verdict_from_probability(probability, evidence, settle, basis="trials")
    space = table.spaces[loss]
    if test.knob not in space.searched_params:
        fixed = space.fixed.get(test.knob)
        reason = f"{test.knob} was not searched" + (
            "." if fixed is None else f" (fixed at {fixed})."
        )
        return undecided_verdict(reason, f"Search {test.knob}.")
    tolerance = models[loss].tolerance
    if not np.isfinite(tolerance):
        return undecided_verdict(
            "The tolerance is unknown because no seed was repeated.", "Repeat some seeds."
        )
    settle = f"Sweep {test.knob} from the best point with repeated seeds."
    direct = by_sweep.judge_by_sweeps(table, loss, test, tolerance, settle=settle, seed=seed)
    return by_sweep.combine_verdicts(direct, _judge_with_model(models[loss], test, settle))


def _judge_with_model(model: LossModel, test: ParamTest, settle: str) -> ClaimVerdict:
    if isinstance(model.surrogate, Refusal):
        return undecided_verdict(model.surrogate.reason, settle)
    if model.curve_refusal is not None:
        return undecided_verdict(model.curve_refusal.reason, settle)
    return by_model.judge_by_model(model.surrogate, test, model.tolerance, settle)


def describe_test(claim: PaperClaim, loss: str) -> str:
    """Describe in words how the claim of a loss is tested."""
    test = claim.test
    other = getattr(test, "other", "")
    other = host_loss_name(loss) if other == "HOST" else other
    match test:
        case StableRange():
            low = "the low end" if test.low is None else f"{test.low:g}"
            high = "the high end" if test.high is None else f"{test.high:g}"
            return f"{test.knob} from {low} to {high} costs at most the tolerance"
        case GoodValue():
            value = f"{test.value:.3g}" if isinstance(test.value, float) else test.value
            return f"{test.knob} = {value} costs at most the tolerance"
        case BetterValue():
            sides = f"{format_side(test.better)} beats {format_side(test.worse)}"
            return f"{test.knob}: {sides} by the tolerance"
        case Sensitive():
            return f"{test.knob} costs more than the tolerance somewhere in its range"
        case BetterLoss():
            return f"tuned score above that of {other}"
        case FasterLoss():
            return (
                f"{by_trials.COMPLETED_RISE_SHARE:.0%} of its own rise in fewer epochs than {other}"
            )
        case CostRatio():
            return f"seconds per epoch at most {test.at_most:g} times those of {other}"
        case HigherMetric():
            return f"{test.metric} above that of {other}"


def host_loss_name(loss: str) -> str:
    """Return the host of a plug-in loss: `proxy_anchor` for `proxy_anchor+synthesis`."""
    return loss.split("+", 1)[0]
