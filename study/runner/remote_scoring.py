"""Remote scoring: baseline scores and gallery embeddings, computed where the trials' GPUs are.

A head often has no GPU although its workers have. The untrained backbone is then scored, and the
images of the galleries are embedded, by Ray tasks with the resources of one rank of a trial.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from study.config.schema import ResourcesSection
from study.runner.context import RunContext
from study.runner.data_fingerprint import DataFingerprint
from study.utils.paths import cache_dir, cache_dir_template
from trainables.actors.worker import limit_gpu_memory
from trainables.config import Split, TrialSpec
from trainables.training.baseline import untrained_metrics
from trainables.training.context import TrainingContext, open_context
from trainables.training.restored_network import embed_validation_items
from trainables.utils.device_errors import format_error_line
from trainables.utils.host_paths import expand_host

REMOTE_TASK_TIMEOUT_SECONDS = 1800.0
"""After the trials have ended, this machine computes what no node returned in this time."""

EmbeddingArray = NDArray[np.float32]


def gpus_are_remote(resources: ResourcesSection) -> bool:
    """Whether trials have a GPU and this process has none."""
    return resources.gpus_per_trial > 0 and not torch.cuda.is_available()


class BaselineScorer:
    """Scores of the untrained backbone, computed once per study.

    Remote scores are requested before the first trial and collected while trials run.

    Args:
        run_context: The run.
        data_fingerprint: Stores the scores in the study's directory.
    """

    def __init__(self, run_context: RunContext, data_fingerprint: DataFingerprint) -> None:
        self._run_context, self._data_fingerprint = run_context, data_fingerprint
        self._resources = run_context.plan.file.resources
        self._open_splits: list[Split] = []
        self._pending_tasks: dict[Any, Split] = {}

    def request_scores(self, splits: Sequence[Split]) -> None:
        """Log the known scores; compute the others here unless the GPUs are remote."""
        for split in splits:
            if scores := self._data_fingerprint.get_baseline_scores(split):
                self._run_context.tracker.log_baseline(split, scores)
            else:
                self._open_splits.append(split)
        if not gpus_are_remote(self._resources):
            self.score_locally()

    def submit_tasks(self) -> None:
        """Submit a Ray task for every split that is not scored yet."""
        for split in self._open_splits:
            task = _make_rank_task(self._resources, score_baseline_task)
            spec = self._build_spec(split, cache_dir_template())
            self._pending_tasks[task.remote(spec.to_dict())] = split

    def update(self) -> None:
        """Collect the scores of finished tasks; call often."""
        self._collect_scores(0.0)

    def wait_for_scores(self) -> None:
        """Wait for all tasks, up to a time limit."""
        self._collect_scores(REMOTE_TASK_TIMEOUT_SECONDS)

    def score_locally(self) -> None:
        """Score the open splits in this process."""
        if self._open_splits:
            self._run_context.display.show_message("scoring the untrained backbone")
        for split in list(self._open_splits):
            spec = self._build_spec(split, cache_dir())
            self._store_scores(split, untrained_metrics(spec, self._run_context.training))

    def _collect_scores(self, timeout: float) -> None:
        if not self._pending_tasks:
            return
        import ray

        done, _ = ray.wait(
            list(self._pending_tasks), num_returns=len(self._pending_tasks), timeout=timeout
        )
        for task in done:
            split = self._pending_tasks.pop(task)
            try:
                self._store_scores(split, ray.get(task))
            except ray.exceptions.RayError as error:
                self._run_context.display.show_warning(
                    f"no node could score the untrained backbone: {format_error_line(error)}"
                )

    def _store_scores(self, split: Split, scores: Mapping[str, float]) -> None:
        self._data_fingerprint.store_baseline_scores(split, scores)
        self._run_context.tracker.log_baseline(split, scores)
        self._open_splits.remove(split)

    def _build_spec(self, split: Split, cache: Path) -> TrialSpec:
        plan = self._run_context.plan
        loss = plan.losses[0]  # any loss: the backbone is not trained
        return plan.build_spec(
            loss,
            plan.example_point(loss),
            trial="untrained",
            seed=0,
            split=split,
            cache_dir=cache,
            checkpoint_dir="",
        )


def embed_remotely(
    resources: ResourcesSection, networks: Iterable[tuple[str, TrialSpec, Mapping[str, Any]]]
) -> dict[str, EmbeddingArray]:
    """Embed each loss's validation images on the trials' nodes.

    Losses whose task is lost with a node are missing from the result; the caller embeds them.

    Args:
        resources: Resources of a trial.
        networks: Loss, trial spec and weights of each network.
    """
    import ray

    task, cache = _make_rank_task(resources, embed_validation_task), str(cache_dir_template())
    losses_by_task = {
        task.remote(replace(spec, cache_dir=cache).to_dict(), weights): loss
        for loss, spec, weights in networks
    }
    if not losses_by_task:
        return {}
    tasks = list(losses_by_task)
    done, _ = ray.wait(tasks, num_returns=len(tasks), timeout=REMOTE_TASK_TIMEOUT_SECONDS)
    vectors = {}
    for finished in done:
        with contextlib.suppress(ray.exceptions.RayError):
            # Ray returns a read-only array.
            vectors[losses_by_task[finished]] = np.array(ray.get(finished))
    return vectors


def _make_rank_task(resources: ResourcesSection, function: Callable[..., Any]) -> Any:
    import ray

    ranks = resources.ranks_per_trial
    return ray.remote(function).options(
        num_cpus=resources.cpus_per_trial / ranks, num_gpus=resources.gpus_per_trial / ranks
    )


# Ray tasks


def score_baseline_task(fields: Mapping[str, Any]) -> dict[str, float]:
    """Score the untrained backbone on a node."""
    spec = TrialSpec.from_dict(fields)
    return untrained_metrics(spec, _open_task_context(spec))


def embed_validation_task(fields: Mapping[str, Any], weights: Mapping[str, Any]) -> EmbeddingArray:
    """Embed the validation images with a trial's network on a node."""
    spec = TrialSpec.from_dict(fields)
    return embed_validation_items(spec, _open_task_context(spec), weights)


def _open_task_context(spec: TrialSpec) -> TrainingContext:
    torch.set_num_threads(max(1, spec.threads))
    limit_gpu_memory(spec.resources)
    cache = Path(expand_host(spec.cache_dir))
    return open_context(spec.dataset, spec.backbone, cache_dir=cache)
