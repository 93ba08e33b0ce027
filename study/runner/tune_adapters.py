"""Tune adapters: searcher, scheduler and callback that connect Tune to the trial controller.

Tune asks the searcher for configurations and the scheduler for decisions; both pass everything to
the controller. Tune's own state (searcher snapshots, experiment state) is not used: a study is
resumed from its journal alone.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from study.config.plan import Plan
from study.directory import StudyDirectory
from study.runner.controller import TrialController
from study.runner.placement import make_placement_group
from study.runner.ray_session import sigterm_as_sigint
from study.utils.environment import temporary_environment
from trainables.actors.trainable import StudyTrial

SPEC_KEY = "spec"
UPDATE_INTERVAL_SECONDS = 0.25

_TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",  # the study's journal replaces Tune's snapshots
    "TUNE_MAX_PENDING_TRIALS_PG": "64",
    "TUNE_WARN_THRESHOLD_S": "5",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}


class ProcessLocalRef:
    """A reference that a pickle or copy of its holder does not follow.

    Tune pickles searchers, schedulers and callbacks into snapshots that this project never reads.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[type[ProcessLocalRef], tuple[None]]:
        return ProcessLocalRef, (None,)

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessLocalRef:
        return self


class TuneSearcher(Searcher):  # type: ignore[misc]
    """Gives Tune the controller's next trial."""

    def __init__(self, controller: TrialController) -> None:
        super().__init__()
        self._local_ref = ProcessLocalRef(controller)
        self._trial_keys: dict[str, str] = {}

    @property
    def _controller(self) -> TrialController:
        controller: TrialController = self._local_ref.value
        return controller

    def set_search_properties(self, *args: Any, **kwargs: Any) -> bool:
        """Ignore Tune's metric and mode: the controller knows the objective."""
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next configuration, None to be asked again later, or FINISHED."""
        if self._controller.scheduler.is_finished() or self._controller.stop_reason:
            return str(Searcher.FINISHED)
        spec = self._controller.start_next_trial()
        if spec is None:
            return None
        self._trial_keys[trial_id] = spec["trial"]
        return {SPEC_KEY: spec}

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Forget a trial that Tune continues only to hold a GPU; the study's trial was requeued."""
        if result.get("state") in ("lost", "held"):
            self._trial_keys.pop(trial_id, None)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Report a lost process; the results have reached the controller before."""
        trial = self._trial_keys.pop(trial_id, None)
        if trial is not None and error:
            self._controller.handle_lost_process(trial)

    def save(self, checkpoint_path: str) -> None:
        """Write an empty file, which Tune requires; the state is in the study's journal."""
        Path(checkpoint_path).write_text("", encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: see `save`."""


class TuneScheduler(FIFOScheduler):  # type: ignore[misc]
    """Passes every result to the controller and returns its decision."""

    def __init__(self, controller: TrialController) -> None:
        super().__init__()
        self._local_ref = ProcessLocalRef(controller)
        self._stopped_trial_ids: set[str] = set()

    @property
    def _controller(self) -> TrialController:
        controller: TrialController = self._local_ref.value
        return controller

    def on_trial_result(self, controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Return whether the trial continues or stops."""
        stops = self._controller.handle_result(trial.config[SPEC_KEY]["trial"], result)
        if stops:
            self._stopped_trial_ids.add(trial.trial_id)
        return str(TrialScheduler.STOP if stops else TrialScheduler.CONTINUE)

    def on_trial_complete(self, controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Handle the last result of a trial that reported `done`: it arrives only here.

        The last result of a trial that the controller stopped arrives again, when the study's trial
        may run once more under the same key.
        """
        if trial.trial_id in self._stopped_trial_ids:
            self._stopped_trial_ids.discard(trial.trial_id)
            return
        if result.get("done") and result.get("state") != "running":
            self._controller.handle_result(trial.config[SPEC_KEY]["trial"], result)


class UpdateCallback(Callback):  # type: ignore[misc]
    """Calls a function a few times a second while Tune runs."""

    def __init__(self, update: Callable[[], None]) -> None:
        self._local_ref = ProcessLocalRef(update)
        self._last_update = 0.0

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Call the function if it is due; Tune's loop gets here about ten times a second."""
        now = time.monotonic()
        if now - self._last_update >= UPDATE_INTERVAL_SECONDS:
            self._last_update = now
            self._local_ref.value()


def run_tune(
    study_dir: StudyDirectory,
    plan: Plan,
    controller: TrialController,
    *,
    update: Callable[[], None],
    trainable: type | None = None,
) -> None:
    """Run trials until the controller has no more, or until ctrl-C.

    Args:
        study_dir: The study's directory, for the files that Tune insists on.
        plan: The study.
        controller: Decides.
        update: Called a few times a second.
        trainable: Trains the trials instead of `StudyTrial`.

    Raises:
        OSError: The study's disk did not accept its journal.
    """
    with temporary_environment(_TUNE_ENVIRONMENT), sigterm_as_sigint():
        tuner = tune.Tuner(
            tune.with_resources(trainable or StudyTrial, make_placement_group(plan.file.resources)),
            tune_config=tune.TuneConfig(
                search_alg=TuneSearcher(controller),
                scheduler=TuneScheduler(controller),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_name,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(study_dir.path / ".tune"),
                # The controller retries a trial whose process died; Tune's own retries miss
                # processes that die between two trials.
                failure_config=tune.FailureConfig(max_failures=0),
                callbacks=[UpdateCallback(update)],
                verbose=0,
            ),
        )
        # The controller handles lost processes; Tune would print a page of traceback for each.
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        try:
            tuner.fit()
        except Exception as error:
            raise _find_os_error(error) from None
        finally:
            shutil.rmtree(study_dir.path / ".tune", ignore_errors=True)


def _find_os_error(error: BaseException) -> BaseException:
    """Return the OSError that Tune wrapped in errors of its own, or the error itself."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, OSError):
        inner = inner.__cause__ or inner.__context__
    return inner or error


def _trial_name(trial: Any) -> str:
    return str(trial.config[SPEC_KEY]["trial"])
