"""Checkpoint retention: which checkpoints of ended trials a study keeps."""

from __future__ import annotations

from collections.abc import Callable

from study.config.plan import Plan
from study.search.job_scheduler import JobScheduler
from study.search.requests import confirm_seed
from study.trials.job import Job
from trainables.training.checkpoints import (
    make_checkpoint_lookup,
    remove_checkpoint,
    remove_partial_checkpoints,
)


class CheckpointRetention:
    """Keeps the checkpoints of the best trials of each loss and of the first confirmations.

    Running trials keep theirs until they end. What an earlier run could not remove, because it
    was killed between the end of a trial and the removal, is removed at construction.

    Args:
        plan: The study; `storage.keep_best` says how many trials of a loss are kept.
        scheduler: Knows the ended trials and their ranking.
        checkpoint_dir: Where trials write their checkpoints: a folder or an S3 prefix.
        forget: Called with the key of a trial whose copies on other nodes may be removed, too.
    """

    def __init__(
        self,
        plan: Plan,
        scheduler: JobScheduler,
        checkpoint_dir: str,
        *,
        forget: Callable[[str], None] = lambda trial: None,
    ) -> None:
        self._plan, self._scheduler, self.checkpoint_dir = plan, scheduler, checkpoint_dir
        self._forget_copies = forget
        self.remove_stale_checkpoints()
        self._retained_by_loss = {loss: self._best_trials(loss) for loss in plan.losses}

    def update_after(self, job: Job) -> None:
        """Remove the checkpoint of an ended trial, or of the trial it pushes out of the best."""
        if not self._is_retained(job):
            self._remove_checkpoint(job.trial)
        best = self._best_trials(job.loss)
        previous, self._retained_by_loss[job.loss] = self._retained_by_loss[job.loss], best
        for trial in sorted(previous - best):
            self._remove_checkpoint(trial)

    def list_retained_trials(self) -> list[str]:
        """Return the keys of the trials whose checkpoints are kept."""
        best = {trial for loss in self._plan.losses for trial in self._best_trials(loss)}
        confirmations = [j for j in self._scheduler.list_ended_jobs() if j.origin == "confirm"]
        return sorted(best | {job.trial for job in confirmations if self._is_retained(job)})

    def remove_stale_checkpoints(self) -> None:
        """Remove checkpoints of ended trials that are not kept; no trial may be running.

        An upload to S3 that was in flight when its trial was pruned leaves one.
        """
        is_stored = make_checkpoint_lookup(self.checkpoint_dir)
        for job in self._scheduler.list_ended_jobs():
            if is_stored(job.trial) and not self._is_retained(job):
                remove_checkpoint(self.checkpoint_dir, job.trial)
        remove_partial_checkpoints(self.checkpoint_dir)

    def _remove_checkpoint(self, trial: str) -> None:
        remove_checkpoint(self.checkpoint_dir, trial)
        self._forget_copies(trial)

    def _is_retained(self, job: Job) -> bool:
        if job.origin == "confirm":
            return job.seed == confirm_seed(self._plan, 0)
        return job.trial in self._best_trials(job.loss)

    def _best_trials(self, loss: str) -> set[str]:
        return set(self._scheduler.best_trials(loss, self._plan.file.storage.keep_best))
