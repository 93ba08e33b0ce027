"""What a study works out besides its trials: where their GPUs are, if this machine has none.

A head often has no GPU though its workers have. There the untrained backbone is scored, and the
best trials' pictures are embedded, by tasks as large as one rank of a trial.
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

from study.data_record import DataRecord
from study.file import ResourcesSection
from study.folders import cache_dir, cache_of_each_host
from study.jobs import Job, Split
from study.plan import Plan
from trainables.hosts import of_this_host
from trainables.restored import validation_vectors
from trainables.settings import TrialSpec
from trainables.training import untrained_metrics
from trainables.workbench import Bench, open_bench
from trainables.worker import last_line, limit_gpu_memory

WAIT_SECONDS = 1800.0
"""When trials have ended and no node answers for so long, this machine does it."""

Vectors = NDArray[np.float32]
Tell = Callable[[Split, Mapping[str, float]], None]


def is_elsewhere(resources: ResourcesSection) -> bool:
    """Whether trials have a GPU and this process has none."""
    return resources.gpus_per_trial > 0 and not torch.cuda.is_available()


class Untrained:
    """Scores of the backbone as it came, worked out once per study.

    Elsewhere they are asked for before the first trial, and nobody waits for them before the end.

    Args:
        plan: The study.
        bench: Its data, for scoring here.
        record: Remembers the scores.
        tell: Is told the scores of each split.
        warn: Is told, in one line, why they could not be worked out elsewhere.
    """

    def __init__(
        self, plan: Plan, bench: Bench, record: DataRecord, tell: Tell, warn: Callable[[str], None]
    ) -> None:
        self._plan, self._bench, self._record = plan, bench, record
        self._tell, self._warn = tell, warn
        self._open: list[Split] = []
        self._asked: dict[Any, Split] = {}

    def want(self, splits: Sequence[Split], say: Callable[[str], None]) -> None:
        """Tell what is known, and score the rest unless that is for others to do."""
        for split in splits:
            if known := self._record.untrained(split):
                self._tell(split, known)
            else:
                self._open.append(split)
        if not is_elsewhere(self._plan.file.resources):
            self.score_here(say)

    def send(self) -> None:
        """Ask a node of the trials for what is open."""
        for split in self._open:
            spec = self._spec(split, cache_of_each_host())
            self._asked[_task(self._plan.file.resources, scored).remote(spec.to_dict())] = split

    def update(self) -> None:
        """To be called often: takes what has come."""
        self._take(0.0)

    def wait(self) -> None:
        """Until all has come, or has been waited for long enough."""
        self._take(WAIT_SECONDS)

    def score_here(self, say: Callable[[str], None]) -> None:
        """Score what is open in this process."""
        if self._open:
            say("scoring the untrained backbone")
        for split in list(self._open):
            self._learn(split, untrained_metrics(self._spec(split, cache_dir()), self._bench))

    def _take(self, timeout: float) -> None:
        if not self._asked:
            return
        import ray

        done, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=timeout)
        for answer in done:
            split = self._asked.pop(answer)
            try:
                self._learn(split, ray.get(answer))
            except ray.exceptions.RayError as error:
                self._warn(f"no node could score the untrained backbone: {last_line(error)}")

    def _learn(self, split: Split, scores: Mapping[str, float]) -> None:
        self._record.remember(split, scores)
        self._tell(split, scores)
        self._open.remove(split)

    def _spec(self, split: Split, cache: Path) -> TrialSpec:
        loss = self._plan.losses[0]
        job = Job("untrained", loss, 0, "published", self._plan.example(loss), seed=0)
        spec = self._plan.trial_spec(job, cache_dir=cache, checkpoint_dir="")
        return replace(spec, split=split)


def embedded(
    resources: ResourcesSection, networks: Iterable[tuple[str, TrialSpec, Mapping[str, Any]]]
) -> dict[str, Vectors]:
    """Vectors of each loss's validation pictures, from nodes of the trials.

    Those that do not come, since a node was lost, are missing: they can be worked out here.

    Args:
        resources: Of a trial.
        networks: A loss, a trial of it and the weights of its network.
    """
    import ray

    task, cache = _task(resources, validated), str(cache_of_each_host())
    asked = {
        task.remote(replace(spec, cache_dir=cache).to_dict(), weights): loss
        for loss, spec, weights in networks
    }
    found = {}
    done = ray.wait(list(asked), num_returns=len(asked), timeout=WAIT_SECONDS)[0] if asked else []
    for answer in done:
        with contextlib.suppress(ray.exceptions.RayError):
            found[asked[answer]] = np.array(ray.get(answer))  # Ray's own is read-only
    return found


def _task(resources: ResourcesSection, function: Callable[..., Any]) -> Any:
    import ray

    ranks = resources.ranks_per_trial
    return ray.remote(function).options(
        num_cpus=resources.cpus_per_trial / ranks, num_gpus=resources.gpus_per_trial / ranks
    )


# What runs on the nodes


def scored(spec: Mapping[str, Any]) -> dict[str, float]:
    """The untrained backbone's scores."""
    told = TrialSpec.from_dict(spec)
    return untrained_metrics(told, _bench(told))


def validated(spec: Mapping[str, Any], weights: Mapping[str, Any]) -> Vectors:
    """What a trial's network makes of the validation pictures."""
    told = TrialSpec.from_dict(spec)
    return validation_vectors(told, _bench(told), weights)


def _bench(spec: TrialSpec) -> Bench:
    torch.set_num_threads(max(1, spec.threads))
    limit_gpu_memory(spec.resources)
    cache = Path(of_this_host(spec.cache_dir))
    return open_bench(spec.dataset, spec.backbone, cache_dir=cache)
