"""Tune's searcher and scheduler, as thin as they can be.

Tune asks the searcher for configurations and the scheduler for decisions; both pass everything to
the desk. Tune's own bookkeeping (searcher snapshots, experiment state) is not used: a study is
continued from its record alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from study.tuning.desk import Desk

SPEC = "spec"
_TICK_SECONDS = 0.25


class Local:
    """A reference that stays in this process: a pickle or a copy of its holder does not follow it.

    Tune pickles searchers, schedulers and callbacks into snapshots this project never reads.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[type[Local], tuple[None]]:
        return Local, (None,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Local:
        return self


class DeskSearcher(Searcher):  # type: ignore[misc]
    """Gives Tune the desk's next trial."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._local = Local(desk)
        self._trials: dict[str, str] = {}

    @property
    def _desk(self) -> Desk:
        desk: Desk = self._local.value
        return desk

    def set_search_properties(self, *args: Any, **kwargs: Any) -> bool:
        """Tune's metric and mode do not matter here: the desk knows the objective."""
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next trial's configuration; None: ask again later. Trials that run may end."""
        if self._desk.ledger.is_finished() or self._desk.trouble:
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
            self._desk.lost(trial)

    def save(self, checkpoint_path: str) -> None:
        """Tune wants a file; the study's state is elsewhere."""
        Path(checkpoint_path).write_text("", encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore: see `save`."""


class DeskScheduler(FIFOScheduler):  # type: ignore[misc]
    """Passes every result to the desk and obeys it."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._local = Local(desk)

    @property
    def _desk(self) -> Desk:
        desk: Desk = self._local.value
        return desk

    def on_trial_result(self, controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Continue, or stop early."""
        stop = self._desk.result(trial.config[SPEC]["trial"], result)
        return str(TrialScheduler.STOP if stop else TrialScheduler.CONTINUE)

    def on_trial_complete(self, controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """The last result of a trial that said it was done comes only here."""
        if result.get("done") and result.get("state") != "running":
            self._desk.result(trial.config[SPEC]["trial"], result)


class Ticker(Callback):  # type: ignore[misc]
    """Calls a function a few times a second while Tune runs."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._local = Local(tick)
        self._last = 0.0

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Tune's loop comes by here about ten times a second."""
        moment = time.monotonic()
        if moment - self._last >= _TICK_SECONDS:
            self._last = moment
            self._local.value()
