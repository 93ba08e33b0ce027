"""Tune's searcher and scheduler, as thin as they can be.

Tune asks the searcher for configurations and the scheduler for decisions; both pass everything to
the desk. Tune's own bookkeeping (searcher snapshots, experiment state) is not used: a study is
continued from its record alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from study.tuning.desk import Desk

SPEC = "spec"


class DeskSearcher(Searcher):  # type: ignore[misc]
    """Gives Tune the desk's next trial."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk
        self._trials: dict[str, str] = {}
        self._draining = False

    def drain(self) -> None:
        """Start nothing more; trials that Tune now stops stay unfinished in the record."""
        self._draining = True

    def set_search_properties(self, *args: Any, **kwargs: Any) -> bool:
        """Tune's metric and mode do not matter here: the desk knows the objective."""
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next trial's configuration; None: ask again later."""
        if self._draining or self._desk.ledger.is_finished():
            return str(Searcher.FINISHED)
        spec = self._desk.start()
        if spec is None:
            return None
        self._trials[trial_id] = spec["trial"]
        return {SPEC: spec}

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """A trial left Tune. Only a lost process is news: results have reached the desk before."""
        trial = self._trials.pop(trial_id, None)
        if trial is not None and error:
            self._desk.lost(trial, "the trial's process was lost too often")

    def save(self, checkpoint_path: str) -> None:
        """Tune wants a file; the study's state is elsewhere."""
        Path(checkpoint_path).write_text("", encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore: see `save`."""


class DeskScheduler(FIFOScheduler):  # type: ignore[misc]
    """Passes every result to the desk and obeys it."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk

    def on_trial_result(self, controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Continue, or stop early."""
        stop = self._desk.result(trial.config[SPEC]["trial"], result)
        return str(TrialScheduler.STOP if stop else TrialScheduler.CONTINUE)

    def on_trial_complete(self, controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """The last result of a trial that said it was done comes only here."""
        if result.get("done") and result.get("state") != "running":
            self._desk.result(trial.config[SPEC]["trial"], result)
