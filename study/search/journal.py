"""Study journal: jobs, intermediate values and outcomes, written to disk before they take effect.

There is one Optuna journal per study, with two Optuna studies per loss: the search itself, and the
extra trials (repeats, sweeps, confirmations) that samplers must not see. Each trial stores its job
when it starts and its outcome when it ends. The journal alone is therefore enough to resume after
any crash, and `optuna.load_study` opens it like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from search_spaces.space import SearchSpace
from study.errors import StudyError
from study.search.journal_file import JournalFile, truncate_torn_line
from study.trials.job import Job, TrialOutcome
from study.trials.table import SEARCH_ORIGINS

JOURNAL_FILE = "optuna.journal"
JOB_ATTR, OUTCOME_ATTR, SAMPLER_VALUE_ATTR = "job", "outcome", "told"
DEFERRED_ATTR, STARTS_ATTR = "set_aside", "starts"
REQUESTS_PREFIX = "requests/"

_OPTUNA_STATES = {
    "finished": TrialState.COMPLETE,
    "stopped": TrialState.PRUNED,
    "diverged": TrialState.FAIL,
    "failed": TrialState.FAIL,
}


class StudyJournal:
    """Journal of one study.

    Args:
        directory: Directory of the study.
        spaces: Search space of each loss.
        writable: True only in the process that holds the study's lock. It removes an incomplete
            last line, which a reader must leave alone because it may be in the process of being
            written.
    """

    def __init__(
        self, directory: Path, spaces: Mapping[str, SearchSpace], *, writable: bool = False
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path = directory / JOURNAL_FILE
        self.is_writable = writable
        if writable:
            truncate_torn_line(path)
        try:
            self._storage = _open_storage(path, writable=writable)
            self._search_studies = {loss: self._open_study(loss, writable) for loss in spaces}
            self._extra_studies = {
                loss: self._open_study(f"{loss}/extra", writable) for loss in spaces
            }
        except Exception as error:
            raise StudyError(f"{path} is damaged: {error}") from None
        self._spaces = spaces
        self._trial_ids: dict[str, int] = {}
        for loss in spaces:
            for trial in self.get_trials(loss):
                self._trial_ids[trial.user_attrs[JOB_ATTR]["trial"]] = trial._trial_id

    def _open_study(self, name: str, writable: bool) -> optuna.Study:
        existing = [summary.study_name for summary in self._storage.get_all_studies()]
        if name in existing:
            return optuna.load_study(study_name=name, storage=self._storage)
        storage = self._storage if writable else InMemoryStorage()
        return optuna.create_study(study_name=name, storage=storage, direction="maximize")

    def write_search_attrs(self, loss: str, attributes: Mapping[str, Any]) -> None:
        """Write attributes of a loss's search, unless they are already recorded."""
        study = self._search_studies[loss]
        for key, value in attributes.items():
            if study.user_attrs.get(key) != value:
                study.set_user_attr(key, value)

    def add_requests(self, jobs: Sequence[Job]) -> None:
        """Write requested jobs (sweeps, confirmations) before any of them starts."""
        study = next(iter(self._extra_studies.values()))
        batches = sum(key.startswith(REQUESTS_PREFIX) for key in study.user_attrs)
        study.set_user_attr(f"{REQUESTS_PREFIX}{batches}", [job.to_dict() for job in jobs])

    def read_requests(self) -> list[Job]:
        """Return all jobs ever requested, in order, whether or not they have run."""
        attrs = next(iter(self._extra_studies.values())).user_attrs
        batches = sum(key.startswith(REQUESTS_PREFIX) for key in attrs)
        return [
            Job.from_dict(job) for i in range(batches) for job in attrs[f"{REQUESTS_PREFIX}{i}"]
        ]

    def get_search_trials(self, loss: str) -> list[FrozenTrial]:
        """Return the trials of a loss's search, in the order in which they started."""
        return _filter_with_job(self._search_studies[loss].get_trials(deepcopy=False))

    def get_extra_trials(self, loss: str) -> list[FrozenTrial]:
        """Return the repeats, sweeps and confirmations of a loss, in the order they started."""
        return _filter_with_job(self._extra_studies[loss].get_trials(deepcopy=False))

    def get_trials(self, loss: str) -> list[FrozenTrial]:
        """Return all trials of a loss."""
        return self.get_search_trials(loss) + self.get_extra_trials(loss)

    def start_trial(self, job: Job, sampler_attrs: Mapping[str, Any] | None = None) -> None:
        """Write a job before it runs, with the system attributes its sampler set."""
        study = (
            self._search_studies[job.loss] if is_search_job(job) else self._extra_studies[job.loss]
        )
        template = create_trial(
            state=TrialState.RUNNING,
            params=dict(job.params),
            distributions=self._spaces[job.loss].distributions,
            user_attrs={JOB_ATTR: job.to_dict()},
            system_attrs=dict(sampler_attrs or {}),
        )
        self._trial_ids[job.trial] = self._storage.create_new_trial(study._study_id, template)

    def report_score(self, trial: str, epoch: int, score: float) -> None:
        """Write the score of a trial after an epoch; it is not kept in memory."""
        trial_id = self._trial_ids[trial]
        self._storage.set_trial_intermediate_value(trial_id, epoch, score)
        self._storage.get_trial(trial_id).intermediate_values.clear()

    def defer_trial(self, trial: str, reason: str) -> None:
        """Write why a trial is left open; it runs again when the study is resumed."""
        self._storage.set_trial_user_attr(self._trial_ids[trial], DEFERRED_ATTR, reason)

    def write_start_count(self, trial: str, count: int, epoch: int) -> None:
        """Write how often a trial was started after an epoch, unless it is already recorded."""
        trial_id = self._trial_ids[trial]
        if self._storage.get_trial(trial_id).user_attrs.get(STARTS_ATTR) != [count, epoch]:
            self._storage.set_trial_user_attr(trial_id, STARTS_ATTR, [count, epoch])

    def clear_intermediate_values(self) -> None:
        """Free the memory of the learning curves; the journal file keeps them."""
        for study in (*self._search_studies.values(), *self._extra_studies.values()):
            for trial in study.get_trials(deepcopy=False):
                trial.intermediate_values.clear()

    def end_trial(
        self, trial: str, outcome: TrialOutcome, *, sampler_value: float | None = None
    ) -> None:
        """Write the outcome of a trial, both as our attribute and as Optuna's state and value.

        Args:
            trial: Key of the trial.
            outcome: How it ended.
            sampler_value: Predicted full-length score of a stopped trial, for samplers that cannot
                use pruned trials.
        """
        trial_id = self._trial_ids[trial]
        self._storage.set_trial_user_attr(trial_id, OUTCOME_ATTR, _nan_to_none(asdict(outcome)))
        if sampler_value is not None:
            self._storage.set_trial_user_attr(trial_id, SAMPLER_VALUE_ATTR, sampler_value)
        values = [outcome.score] if math.isfinite(outcome.score) else None
        state = _OPTUNA_STATES[outcome.state]
        self._storage.set_trial_state_values(
            trial_id, state, None if state is TrialState.FAIL else values
        )


def is_search_job(job: Job) -> bool:
    """Whether a job belongs to the search, so that samplers learn from it."""
    return job.origin in SEARCH_ORIGINS


def job_from_trial(trial: FrozenTrial) -> Job:
    """Return the job of a recorded trial."""
    return Job.from_dict(trial.user_attrs[JOB_ATTR])


def outcome_from_trial(trial: FrozenTrial) -> TrialOutcome | None:
    """Return the outcome of a recorded trial; None while it is running."""
    if not trial.state.is_finished():
        return None
    stored = dict(trial.user_attrs[OUTCOME_ATTR])
    for key in ("score", "score_std"):
        stored[key] = math.nan if stored[key] is None else stored[key]
    return TrialOutcome(**stored)


def start_count_from_trial(trial: FrozenTrial) -> int:
    """Return how often an open trial was started without completing an epoch since.

    A trial without a recorded count was started once.
    """
    count, epoch = trial.user_attrs.get(STARTS_ATTR, (1, 0))
    return int(count) if max(trial.intermediate_values, default=0) <= epoch else 0


def _filter_with_job(trials: list[FrozenTrial]) -> list[FrozenTrial]:
    return [trial for trial in trials if JOB_ATTR in trial.user_attrs]


def _nan_to_none(values: dict[str, Any]) -> dict[str, Any]:
    """Replace non-finite numbers by None, because JSON has no NaN."""
    return {
        k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()
    }


def _open_storage(path: Path, *, writable: bool) -> BaseStorage:
    if not writable and not path.exists():
        return InMemoryStorage()
    return JournalStorage(JournalFile(path))
