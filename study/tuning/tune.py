"""Ray Tune, set up so that the desk decides and the study's record is the only state."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from typing import Any

from study.environment import environment
from study.home import StudyHome
from study.plan import Plan
from study.tuning.desk import Desk
from study.tuning.placement import placement
from study.tuning.session import polite_stop

_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",  # the study's record replaces Tune's snapshots
    "TUNE_WARN_THRESHOLD_S": "5",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}


def run_tune(
    home: StudyHome, plan: Plan, desk: Desk, show: Callable[[], None], trainable: type | None
) -> None:
    """Run trials until the desk has no more, or until ctrl-C.

    Args:
        home: The study's directory, for what Tune must write somewhere.
        plan: The study.
        desk: Decides.
        show: Called a few times a second.
        trainable: Runs the trials instead of `StudyTrial`.

    Raises:
        OSError: The study's disk did not take its record.
    """
    from ray import tune

    from study.tuning.adapters import DeskScheduler, DeskSearcher, Ticker
    from trainables.trial import StudyTrial

    with environment(_SETTINGS | {"TUNE_MAX_PENDING_TRIALS_PG": "64"}), polite_stop():
        tuner = tune.Tuner(
            tune.with_resources(trainable or StudyTrial, placement(plan.file.resources)),
            tune_config=tune.TuneConfig(
                search_alg=DeskSearcher(desk),
                scheduler=DeskScheduler(desk),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_name,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(home.directory / ".tune"),
                # The desk hands a trial whose process died to another one; Tune's own retries
                # miss those that die between two trials.
                failure_config=tune.FailureConfig(max_failures=0),
                callbacks=[Ticker(show)],
                verbose=0,
            ),
        )
        # Lost processes are the desk's business, not a page of traceback for the user.
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        try:
            tuner.fit()
        except Exception as error:
            raise _cause(error) from None
        finally:
            shutil.rmtree(home.directory / ".tune", ignore_errors=True)


def _cause(error: BaseException) -> BaseException:
    """What went wrong at the desk: Tune hides it in an error of its own, a page of traceback."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, OSError):
        inner = inner.__cause__ or inner.__context__
    return inner or error


def _trial_name(trial: Any) -> str:
    return str(trial.config["spec"]["trial"])
