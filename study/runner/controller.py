"""Where trials check in and out: the ledger decides, the tracker is told, checkpoints are kept.

Tune's searcher and scheduler talk to this desk; it holds no Ray object, so whatever happens in a
cluster reaches the study through these few calls.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from study.jobs import Job, Outcome, Progress
from study.plan import Plan
from study.requests import confirm_seed
from study.table import State
from study.tracking.redaction import redact
from study.tuning.brake import Brake
from study.tuning.ledger import MOST_STARTS, Ledger
from trainables.checkpoints import has_checkpoints, remove_checkpoint, remove_leftovers

MAX_LOSSES = 5


class Listener(Protocol):
    """Someone who is told what happens: the tracker."""

    def started(self, job: Job) -> None:
        """A trial starts, or starts again."""

    def epoch(self, job: Job, epoch: int, metrics: Mapping[str, float], host: str) -> None:
        """A trial finished an epoch there."""

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A trial ended."""


class Desk:
    """The one place through which a run's trials pass.

    Args:
        plan: The study.
        ledger: Decides.
        listener: Is told.
        cache_dir: Where nodes keep decoded data.
        checkpoint_dir: Where trials keep their checkpoints.
        slots: Trials that run at once; one more is asked for ahead, so that no slot waits.
        errors_dir: Where tracebacks of failed trials are kept; None for nowhere.
        nodes_lost: How many nodes the cluster has lost so far.
        warn: Is told, in one line, what a person should know though trials go on.
        forget: Is told whose checkpoint may go wherever else it is.
        fingerprint: Of the study's data as they are here; empty if it does not matter.
        weights: Likewise of the weights that trials start from.
    """

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        listener: Listener,
        *,
        cache_dir: Path,
        checkpoint_dir: str,
        slots: Callable[[], int],
        errors_dir: Path | None = None,
        nodes_lost: Callable[[], int] = lambda: 0,
        warn: Callable[[str], None] = lambda text: None,
        forget: Callable[[str], None] = lambda trial: None,
        fingerprint: str = "",
        weights: str = "",
    ) -> None:
        self._plan, self.ledger, self._listener = plan, ledger, listener
        self._cache_dir, self._checkpoint_dir, self._slots = cache_dir, checkpoint_dir, slots
        self._errors_dir, self._nodes_lost = errors_dir, nodes_lost
        self._nodes_lost_before: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self._kept: dict[str, set[str]] = {}
        self._losses: dict[str, int] = {}
        self._brake = Brake()
        self._warn, self._warned, self._forget = warn, set[str](), forget
        self._fingerprints = {"fingerprint": fingerprint, "weights": weights}
        self._differs: set[tuple[str, str]] = set()
        self._without_gpu = set[str]()
        # One trial waits for a slot, unless a limit says how many may run: Tune would start it.
        self._ahead = 1 if plan.file.resources.max_concurrent is None else 0
        self._tidy()

    def start(self) -> dict[str, Any] | None:
        """The next trial's spec as plain values; None when there is nothing to start now."""
        while len(self.ledger.running) < self._slots() + self._ahead and not self._brake.is_on:
            job = self.ledger.next_job()
            if job is None:
                if self.ledger.running or not (own := self._brake.release()):
                    return None
                self._end_all(own)  # nothing is left to start that could tell more about them
                continue
            self._look_for_lost_nodes(job.trial)
            self._listener.started(job)
            if (times := self.ledger.starts(job.trial)) >= MOST_STARTS:
                self._give_up(job, times)
                continue
            try:
                spec = self._plan.trial_spec(
                    job, cache_dir=self._cache_dir, checkpoint_dir=self._checkpoint_dir
                )
            except ValueError as error:  # one impossible point must not end the study
                self._end(job, Outcome("failed", 0, math.nan, error=str(error)))
                continue
            self._brake.started(job.trial)
            return spec.to_dict()
        return None

    @property
    def trouble(self) -> str:
        """Why no trial will be started any more though the plan is not done; empty if none."""
        return self._brake.reason

    def progress(self) -> list[Progress]:
        """How far each loss is; the trial that was asked for ahead does not run yet."""
        return self.ledger.progress(slots=self._slots())

    def running(self) -> dict[str, Job]:
        """The jobs that run, without the one that was asked for ahead."""
        return dict(itertools.islice(self.ledger.running.items(), self._slots()))

    def result(self, trial: str, result: Mapping[str, Any]) -> bool:
        """What a trial reports after an epoch; True when it must not go on."""
        job = self.ledger.running.get(trial)
        if job is None:
            return True
        state, epoch = result["state"], int(result["epoch"])
        seconds = self._seconds[trial] = float(result.get("seconds", self._seconds.get(trial, 0.0)))
        if state == "lost":
            self.lost(trial, str(result.get("error", "")))
            return True
        done = max(epoch, self.ledger.epochs_done(trial))
        if state == "failed":
            self._keep_traceback(trial, str(result.get("traceback", "")))
            self._fail(job, _failure(state, done, seconds, result))
            return True
        self._end_all(self._brake.works(trial))
        if state == "diverged":
            self._end(job, _failure(state, done, seconds, result))
            return True
        self._pass_on(trial, str(result.get("warning", "")))
        self._compare_data(result)
        self._look_for_gpu(str(result.get("host", "")), str(result.get("device", "")))
        score, spread = float(result["score"]), float(result.get("score_std", math.nan))
        if not math.isfinite(score):  # no sampler can be told that
            result = {**result, "error": f"the score is {score}"}
            self._end(job, _failure("diverged", self.ledger.epochs_done(trial), seconds, result))
            return True
        if epoch > self.ledger.epochs_done(trial):  # not what its checkpoint repeats
            self._losses.pop(trial, None)
        told = {"score_std": spread} if math.isfinite(spread) else {}
        self._listener.epoch(job, epoch, {**_metrics(result), **told}, str(result.get("host", "")))
        low = self.ledger.report(trial, epoch, score)
        if state == "finished" or low:
            self._end(
                job,
                Outcome(
                    state="finished" if state == "finished" else "stopped",
                    epochs=epoch,
                    score=score,
                    score_std=spread,
                    seconds=seconds,
                    host=str(result.get("host", "")),
                    metrics=_metrics(result),
                ),
            )
            return True
        return False

    def lost(self, trial: str, reason: str = "") -> None:
        """A trial's process died, or it cannot reach its checkpoint; it goes on in another process.

        A lost node is a pause, however often it happens (spot machines). Only a trial that is lost
        again and again without ever finishing another epoch has failed.

        Args:
            trial: Key.
            reason: What the trial says, if it could still speak.
        """
        job = self.ledger.running.get(trial)
        if job is None:
            return
        self._brake.gone(trial)
        if not self._look_for_lost_nodes(trial):
            self._losses[trial] = self._losses.get(trial, 0) + 1
        times = self._losses.get(trial, 0)
        if times <= MAX_LOSSES:
            self.ledger.give_back(trial)
            return
        seconds, done = self._seconds.get(trial, 0.0), self.ledger.epochs_done(trial)
        error = reason or f"its process died {times} times in the same epoch"
        self._fail(job, Outcome("failed", done, math.nan, seconds=seconds, error=error))

    def _give_up(self, job: Job, times: int) -> None:
        """A trial that took run after run with it must not take the next one."""
        error = (
            f"the run died {times} times before this trial finished another epoch: does it need "
            "more memory than there is?"
        )
        done = self.ledger.epochs_done(job.trial)
        self._end(job, Outcome("failed", done, math.nan, error=error))
        self._warn(f"{job.trial} is given up: {error}")

    def _look_for_lost_nodes(self, trial: str) -> bool:
        """Whether a node was lost since the last look; the trial's last loss was not its own then.

        Ranks notice a dead node at once and end, Ray calls it dead only later, so that the loss
        may have been counted in between.
        """
        lost = self._nodes_lost()
        is_more = lost > self._nodes_lost_before.get(trial, lost)
        self._nodes_lost_before[trial] = lost
        if is_more and self._losses.get(trial):
            self._losses[trial] -= 1
        return is_more

    def _fail(self, job: Job, outcome: Outcome) -> None:
        """A trial failed; before its first epoch the reason may be one that strikes all trials.

        What fails so again after the study was stopped and went on has failed.
        """
        if outcome.epochs or self.ledger.was_set_aside(job.trial):
            self._end(job, outcome)
            return
        self._brake.failed(job, outcome)
        self.ledger.set_aside(job.trial, outcome.error)

    def _end_all(self, failures: Sequence[tuple[Job, Outcome]]) -> None:
        for job, outcome in failures:
            self._end(job, outcome)

    def _pass_on(self, trial: str, warning: str) -> None:
        """Say once what is wrong with a trial's checkpoints, until nothing is."""
        if not warning:
            self._warned.discard(trial)
        elif trial not in self._warned:
            self._warned.add(trial)
            self._warn(f"{trial}: {warning}")

    def _compare_data(self, result: Mapping[str, Any]) -> None:
        """Say once of each host that it has other data or weights: an old copy, perhaps."""
        host = str(result.get("host", ""))
        for key, what in (("fingerprint", "data"), ("weights", "backbone's weights")):
            here, there = self._fingerprints[key], str(result.get(key, ""))
            if here and there not in ("", here) and (host, key) not in self._differs:
                self._differs.add((host, key))
                self._warn(
                    f"the {what} on {host} are not those of the study (fingerprint {there}, here "
                    f"{here}): scores from there cannot be compared with others; copy them again"
                )

    def _look_for_gpu(self, host: str, device: str) -> None:
        """Say once of each host that trials were given a GPU there and compute without it."""
        wanted = self._plan.file.resources.gpus_per_trial > 0
        if wanted and device == "cpu" and host not in self._without_gpu:
            self._without_gpu.add(host)
            self._warn(
                f"{host}: trials have a GPU there, but torch sees none (a driver too old for this "
                "torch, or a torch without CUDA?); they train on its processors"
            )

    def _keep_traceback(self, trial: str, text: str) -> None:
        """Leave the whole traceback where the study ends, not on a node that may be gone."""
        if text and self._errors_dir is not None:
            with contextlib.suppress(OSError):  # a full disk must not hide the error itself
                self._errors_dir.mkdir(parents=True, exist_ok=True)
                path = self._errors_dir / f"{trial}.txt"
                path.write_text(redact(text), encoding="utf-8")

    def _end(self, job: Job, outcome: Outcome) -> None:
        # The tracker writes ahead: should we die between the two lines, the trial is still open
        # in the record and ends again after a resume, which changes nothing in the tracker.
        self._brake.gone(job.trial)
        self._listener.ended(job, outcome)
        self.ledger.end(job.trial, outcome)
        self._seconds.pop(job.trial, None)
        self._nodes_lost_before.pop(job.trial, None)
        self._keep_best(job)

    def _keep_best(self, job: Job) -> None:
        """Drop the checkpoint of a trial that ended, or of the one it pushes out of the best."""
        if not self._is_kept(job):
            self._remove(job.trial)
        best = self._best(job.loss)
        old, self._kept[job.loss] = self._kept.get(job.loss, set()), best
        for trial in sorted(old - best):
            self._remove(trial)

    def _remove(self, trial: str) -> None:
        remove_checkpoint(self._checkpoint_dir, trial)
        self._forget(trial)

    def kept(self) -> list[str]:
        """Trials whose checkpoints are kept."""
        best = {trial for loss in self._plan.losses for trial in self._best(loss)}
        ended = [job for job in self.ledger.ended_jobs() if job.origin == "confirm"]
        return sorted(best | {job.trial for job in ended if self._is_kept(job)})

    def _tidy(self) -> None:
        """Drop what an earlier run could not: it may have died between an end and its clean-up."""
        is_stored = has_checkpoints(self._checkpoint_dir)
        for job in self.ledger.ended_jobs():
            if is_stored(job.trial) and not self._is_kept(job):
                remove_checkpoint(self._checkpoint_dir, job.trial)
        self._kept = {loss: self._best(loss) for loss in self._plan.losses}
        remove_leftovers(self._checkpoint_dir)

    def _is_kept(self, job: Job) -> bool:
        """The best of each loss, and the first confirmation of each point, are kept."""
        if job.origin == "confirm":
            return job.seed == confirm_seed(self._plan, 0)
        return job.trial in self._best(job.loss)

    def _best(self, loss: str) -> set[str]:
        return set(self.ledger.best(loss, self._plan.file.storage.keep_best))


def _metrics(result: Mapping[str, Any]) -> dict[str, float]:
    prefix = "metrics/"
    flat = {k.removeprefix(prefix): v for k, v in result.items() if k.startswith(prefix)}
    return {k: float(v) for k, v in (flat or result.get("metrics", {})).items()}


def _failure(state: State, epoch: int, seconds: float, result: Mapping[str, Any]) -> Outcome:
    return Outcome(
        state=state,
        epochs=epoch,
        score=math.nan,
        seconds=seconds,
        error=str(result.get("error", "")),
        host=str(result.get("host", "")),
    )
