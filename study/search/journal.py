"""What was asked and what came of it, on disk before anything else happens.

One Optuna journal per study, with two Optuna studies per loss: the search itself, and the extra
trainings (repeats, sweeps, confirmations) that no sampler may see. Each trial holds its job from
the start and its outcome at the end, so the journal alone is enough to go on after any crash, and
`optuna.load_study` opens it like any other.
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

from search_spaces.space import Space
from study.errors import StudyError
from study.jobs import Job, Outcome
from study.tuning.journal import Journal, cut_torn_line

JOURNAL_FILE = "optuna.journal"
JOB, OUTCOME, TOLD = "job", "outcome", "told"
SET_ASIDE, STARTS = "set_aside", "starts"
REQUESTS = "requests/"

_TOLD_STATE = {
    "finished": TrialState.COMPLETE,
    "stopped": TrialState.PRUNED,
    "diverged": TrialState.FAIL,
    "failed": TrialState.FAIL,
}


class Record:
    """The journal of one study.

    Args:
        directory: The study's directory.
        spaces: The space of each loss.
        writable: For the one process that holds the study. It mends a line that a power cut or a
            full disk left half written, which a reader must not touch: it may be being written.
    """

    def __init__(
        self, directory: Path, spaces: Mapping[str, Space], *, writable: bool = False
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path = directory / JOURNAL_FILE
        self.writable = writable
        if writable:
            cut_torn_line(path)
        try:
            self._storage = _storage(path, writable=writable)
            self._search = {loss: self._open(loss, writable) for loss in spaces}
            self._extra = {loss: self._open(f"{loss}/extra", writable) for loss in spaces}
        except Exception as error:
            raise StudyError(f"{directory / JOURNAL_FILE} is damaged: {error}") from None
        self._spaces = spaces
        self._ids: dict[str, int] = {}
        for loss in spaces:
            for trial in self.trials(loss):
                self._ids[trial.user_attrs[JOB]["trial"]] = trial._trial_id

    def _open(self, name: str, writable: bool) -> optuna.Study:
        known = [summary.study_name for summary in self._storage.get_all_studies()]
        if name in known:
            return optuna.load_study(study_name=name, storage=self._storage)
        storage = self._storage if writable else InMemoryStorage()
        return optuna.create_study(study_name=name, storage=storage, direction="maximize")

    def describe(self, loss: str, attributes: Mapping[str, Any]) -> None:
        """Write down how a loss is searched, unless that is what is written already."""
        study = self._search[loss]
        for key, value in attributes.items():
            if study.user_attrs.get(key) != value:
                study.set_user_attr(key, value)

    def request(self, jobs: Sequence[Job]) -> None:
        """Write down trainings that are asked for by name, before any of them starts."""
        study = next(iter(self._extra.values()))
        batches = sum(key.startswith(REQUESTS) for key in study.user_attrs)
        study.set_user_attr(f"{REQUESTS}{batches}", [job.to_dict() for job in jobs])

    def requests(self) -> list[Job]:
        """Everything that was ever asked for by name, in order; most of it may have been run."""
        known = next(iter(self._extra.values())).user_attrs
        batches = sum(key.startswith(REQUESTS) for key in known)
        return [Job(**job) for i in range(batches) for job in known[f"{REQUESTS}{i}"]]

    def searched(self, loss: str) -> list[FrozenTrial]:
        """The trials of the search, in the order they were asked."""
        return _with_job(self._search[loss].get_trials(deepcopy=False))

    def extra(self, loss: str) -> list[FrozenTrial]:
        """Repeats, sweeps and confirmations, in the order they were asked."""
        return _with_job(self._extra[loss].get_trials(deepcopy=False))

    def trials(self, loss: str) -> list[FrozenTrial]:
        """All trials of a loss."""
        return self.searched(loss) + self.extra(loss)

    def start(self, job: Job, notes: Mapping[str, Any] | None = None) -> None:
        """Write down a job before it runs, with what its sampler noted on it."""
        study = self._search[job.loss] if is_search(job) else self._extra[job.loss]
        template = create_trial(
            state=TrialState.RUNNING,
            params=dict(job.values),
            distributions=self._spaces[job.loss].distributions,
            user_attrs={JOB: job.to_dict()},
            system_attrs=dict(notes or {}),
        )
        self._ids[job.trial] = self._storage.create_new_trial(study._study_id, template)

    def report(self, trial: str, epoch: int, score: float) -> None:
        """Write down a trial's score after an epoch; memory does not keep it."""
        trial_id = self._ids[trial]
        self._storage.set_trial_intermediate_value(trial_id, epoch, score)
        self._storage.get_trial(trial_id).intermediate_values.clear()

    def set_aside(self, trial: str, reason: str) -> None:
        """Write down why a trial is left open, to be run again when the study goes on."""
        self._storage.set_trial_user_attr(self._ids[trial], SET_ASIDE, reason)

    def count_starts(self, trial: str, count: int, epoch: int) -> None:
        """Write down how often a trial was started after an epoch, unless that is written."""
        trial_id = self._ids[trial]
        if self._storage.get_trial(trial_id).user_attrs.get(STARTS) != [count, epoch]:
            self._storage.set_trial_user_attr(trial_id, STARTS, [count, epoch])

    def forget_curves(self) -> None:
        """Drop the learning curves that were read from the journal, which keeps them."""
        for study in (*self._search.values(), *self._extra.values()):
            for trial in study.get_trials(deepcopy=False):
                trial.intermediate_values.clear()

    def end(self, trial: str, outcome: Outcome, *, told: float | None = None) -> None:
        """Write down how a trial ended, in Optuna's terms and in ours.

        Args:
            trial: Key.
            outcome: How it ended.
            told: A value for samplers that cannot use stopped trials, when it differs.
        """
        trial_id = self._ids[trial]
        self._storage.set_trial_user_attr(trial_id, OUTCOME, _plain(asdict(outcome)))
        if told is not None:
            self._storage.set_trial_user_attr(trial_id, TOLD, told)
        values = [outcome.score] if math.isfinite(outcome.score) else None
        state = _TOLD_STATE[outcome.state]
        self._storage.set_trial_state_values(
            trial_id, state, None if state is TrialState.FAIL else values
        )


def is_search(job: Job) -> bool:
    """Whether samplers may learn from this job."""
    return job.origin in ("published", "sobol", "bayes")


def job_of(trial: FrozenTrial) -> Job:
    """The job of a recorded trial."""
    return Job(**trial.user_attrs[JOB])


def outcome_of(trial: FrozenTrial) -> Outcome | None:
    """The outcome of a recorded trial; None while it runs."""
    if not trial.state.is_finished():
        return None
    stored = dict(trial.user_attrs[OUTCOME])
    for key in ("score", "score_std"):
        stored[key] = math.nan if stored[key] is None else stored[key]
    return Outcome(**stored)


def starts_of(trial: FrozenTrial) -> int:
    """How often a recorded trial that is open was started without finishing an epoch since.

    One of which nothing is written down was started once.
    """
    count, epoch = trial.user_attrs.get(STARTS, (1, 0))
    return int(count) if max(trial.intermediate_values, default=0) <= epoch else 0


def _with_job(trials: list[FrozenTrial]) -> list[FrozenTrial]:
    return [trial for trial in trials if JOB in trial.user_attrs]


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: missing numbers are null."""
    return {
        k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()
    }


def _storage(path: Path, *, writable: bool) -> BaseStorage:
    if not writable and not path.exists():
        return InMemoryStorage()
    return JournalStorage(Journal(path))
