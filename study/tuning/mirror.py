"""What does a sampler see? A copy of the search in memory: asking costs no disk access."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState, create_trial

from search_spaces.space import Space, Value
from study.jobs import Job, Outcome
from study.tuning.gaussian import DIVERGED

_STATES = {"finished": TrialState.COMPLETE, "stopped": TrialState.PRUNED}


class Mirror:
    """The points of one loss's search as an Optuna study, with what the sampler is told of each.

    Args:
        space: The loss's space.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._study = optuna.create_study(direction="maximize")
        self._storage = self._study._storage
        self._ids: dict[str, int] = {}
        self._question: int | None = None

    def ask(self, sampler: BaseSampler) -> dict[str, Value]:
        """The sampler's next point; it becomes a trial's with `add`."""
        self._study.sampler = sampler
        trial = self._study.ask(self._space.distributions)
        self._question = trial._trial_id
        return dict(trial.params)

    def notes(self) -> dict[str, Any]:
        """What the sampler wrote on the point it gave last: CMA-ES keeps its whole state there."""
        if self._question is None:
            return {}
        return dict(self._storage.get_trial(self._question).system_attrs)

    def add(self, job: Job, notes: Mapping[str, Any] | None = None) -> None:
        """A job runs: the point that was asked for last, or one that others chose."""
        asked, self._question = self._question, None
        if job.origin == "bayes" and asked is not None:
            self._ids[job.trial] = asked
            return
        template = create_trial(
            state=TrialState.RUNNING,
            params=dict(job.values),
            distributions=self._space.distributions,
            system_attrs=dict(notes or {}),
        )
        self._ids[job.trial] = self._storage.create_new_trial(self._study._study_id, template)

    def tell(self, trial: str, outcome: Outcome, told: float | None) -> None:
        """How a trial ended; `told` replaces the score of one that was stopped."""
        trial_id = self._ids[trial]
        state, value = _STATES.get(outcome.state, TrialState.FAIL), outcome.score
        if told is not None:
            state, value = TrialState.COMPLETE, told
        if state is TrialState.PRUNED:
            # Samplers order stopped trials by the epoch they reached and their score there; the
            # epochs before are kept in the record alone.
            self._storage.set_trial_intermediate_value(trial_id, outcome.epochs, outcome.score)
        if outcome.state == "diverged":
            self._storage.set_trial_user_attr(trial_id, DIVERGED, True)
        values = None if state is TrialState.FAIL else [value]
        self._storage.set_trial_state_values(trial_id, state, values)
