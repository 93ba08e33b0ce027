"""Sampler of one loss: an in-memory Optuna study of its search, and the points sampled from it.

It samples the points that come neither from the paper nor from the Sobol sequence. A new Optuna
sampler is created for every point, with a seed derived from the point's index: a point depends on
the recorded trials and its index only, never on the process. A resumed study therefore samples the
points that an uninterrupted one would have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from search_spaces.space import ParamValue
from study.config.plan import Plan
from study.search.designs import grid_points
from study.search.gp_sampler import DIVERGED_ATTR
from study.search.optuna_samplers import describe_sampler, make_sampler, resolve_sampler_name
from study.trials.job import Job, TrialOutcome
from trainables.utils.seeding import derive_seed

_SAMPLERS_NEEDING_FULL_VALUES = ("gp", "cmaes")
_OPTUNA_STATES = {"finished": TrialState.COMPLETE, "stopped": TrialState.PRUNED}


class LossSampler:
    """Samples points of one loss.

    The in-memory study contains the trials of the search, without their learning curves. Samplers
    that cannot use pruned trials (GP, CMA-ES) see stopped trials as complete ones, with their
    predicted full-length score.

    Args:
        plan: Plan of the study.
        loss: Registry name of the loss.
    """

    def __init__(self, plan: Plan, loss: str) -> None:
        self._plan, self._loss, self._space = plan, loss, plan.spaces[loss]
        self._seed = plan.file.search.seed
        self._sampler_name = resolve_sampler_name(
            plan.file.search.sampler, self._space, plan.n_points
        )
        # Sobol points serve as start-up trials; a study without them still needs a few.
        self._n_startup_trials = 0 if plan.n_sobol_points(loss, 0) >= 4 else 4
        self._cached_grid: list[dict[str, ParamValue]] = []
        self._study = optuna.create_study(direction="maximize")
        self._storage = self._study._storage
        self._trial_ids: dict[str, int] = {}
        self._sampled_id: int | None = None  # Optuna trial that no job has taken yet

    @property
    def needs_full_values(self) -> bool:
        """Whether stopped trials must be reported with a predicted full-length score."""
        return self._sampler_name in _SAMPLERS_NEEDING_FULL_VALUES

    @property
    def trials(self) -> list[FrozenTrial]:
        """The trials of the search as the sampler sees them."""
        return self._study.trials

    def describe_settings(self) -> dict[str, Any]:
        """Return the name of the sampler and all its settings."""
        return describe_sampler(
            self._sampler_name, n_startup_trials=self._n_startup_trials, space=self._space
        )

    def sample_point(self, index: int) -> dict[str, ParamValue]:
        """Return sampled point `index`; `add_trial` turns it into a trial."""
        if self._sampler_name == "grid":
            return self._grid_points()[index]
        self._study.sampler = make_sampler(
            self._sampler_name,
            seed=derive_seed(self._seed, "sampler", self._loss, index) % 2**32,
            n_startup_trials=self._n_startup_trials,
        )
        trial = self._study.ask(self._space.distributions)
        self._sampled_id = trial._trial_id
        return dict(trial.params)

    def get_system_attrs(self) -> dict[str, Any]:
        """Return what the sampler stored with its last point: CMA-ES keeps its state there."""
        if self._sampled_id is None:
            return {}
        return dict(self._storage.get_trial(self._sampled_id).system_attrs)

    def add_trial(self, job: Job, system_attrs: Mapping[str, Any] | None = None) -> None:
        """Add a running trial: at the point sampled last, or at a point from elsewhere.

        Args:
            job: Job of the trial.
            system_attrs: Recorded attributes of the sampler, when the journal is replayed.
        """
        sampled_id, self._sampled_id = self._sampled_id, None
        if job.origin == "bayes" and sampled_id is not None:
            self._trial_ids[job.trial] = sampled_id
            return
        template = create_trial(
            state=TrialState.RUNNING,
            params=dict(job.params),
            distributions=self._space.distributions,
            system_attrs=dict(system_attrs or {}),
        )
        self._trial_ids[job.trial] = self._storage.create_new_trial(self._study._study_id, template)

    def tell_outcome(self, trial: str, outcome: TrialOutcome, full_value: float | None) -> None:
        """Report how a trial ended.

        Args:
            trial: Key of the trial.
            outcome: How it ended.
            full_value: Predicted full-length score of a stopped trial, which makes it complete;
                None reports its own score.
        """
        trial_id = self._trial_ids[trial]
        state, value = _OPTUNA_STATES.get(outcome.state, TrialState.FAIL), outcome.score
        if full_value is not None:
            state, value = TrialState.COMPLETE, full_value
        if state is TrialState.PRUNED:
            # Samplers rank pruned trials by their last epoch and the score there; earlier epochs
            # are kept in the journal only.
            self._storage.set_trial_intermediate_value(trial_id, outcome.epochs, outcome.score)
        if outcome.state == "diverged":
            self._storage.set_trial_user_attr(trial_id, DIVERGED_ATTR, True)
        values = None if state is TrialState.FAIL else [value]
        self._storage.set_trial_state_values(trial_id, state, values)

    def _grid_points(self) -> list[dict[str, ParamValue]]:
        if not self._cached_grid:
            totals = [
                self._plan.n_sampler_points(self._loss, i) for i in range(len(self._plan.stages))
            ]
            self._cached_grid = grid_points(self._space, totals, seed=self._seed)
        return self._cached_grid
