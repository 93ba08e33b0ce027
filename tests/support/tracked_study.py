"""Small study as calls of a tracker, and its MLflow runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mlflow import MlflowClient
from mlflow.entities import Run

from search_spaces.space import (
    Choice,
    Float,
    Hyperparameter,
    Int,
    ParamValue,
    PublishedPoint,
    SearchSpace,
)
from study.tracking.records import TrialRecord
from study.tracking.tracker import Tracker
from study.trials.job import Job

Doubles = Callable[[Path], list[Any]]


class OpenTracker(Protocol):
    def __call__(
        self, folder: Path, uri: str | None = None, *, process: bool = False, **more: Any
    ) -> Tracker: ...


START_SECONDS = 1_800_000_000.0


def _make_space(loss: str, symbol: str, **more: Hyperparameter) -> SearchSpace:
    alpha = Hyperparameter(Float(8.0, 128.0, log=True), symbol, "sharpness")
    params = {"alpha": alpha, **more}
    nuisance = {
        "batch_size": Hyperparameter(Int(16, 256), "B", "memory", unit=" images"),
        "pooling": Hyperparameter(Choice(["avg", "max"]), "pool", "common choices"),
        "layer_norm": Hyperparameter(Choice([True, False]), "LN", "on or off"),
    }
    published: dict[str, ParamValue] = {"alpha": 32.0, "batch_size": 180, "pooling": "avg"}
    published |= {"layer_norm": True} | dict.fromkeys(more, 0.1)
    point = PublishedPoint("the paper", published)
    return SearchSpace(loss, "A paper, 2020", params, nuisance, {"embedding_dim": 64}, (point,))


@dataclass(frozen=True)
class TrackedStudy:
    """Fixed study as calls of a tracker, after which every store must have the same content."""

    spaces: dict[str, SearchSpace]
    epochs: int = 3

    @property
    def plan(self) -> dict[str, Any]:
        return {
            "study": "groceries",
            "protocol": {
                "objective": "map_at_r",
                "epochs": self.epochs,
                "dataset": "grocery81",
                "backbone": "efficientnet_lite0",
                "folds": 2,
                "tolerance": None,
            },
            "dataset": {
                "name": "grocery81",
                "fingerprint": "0123abcd",
                "images": 2640,
                "classes": 81,
            },
            "baseline": {},
            "samplers": {"circle": {"sampler": "gp", "foretold_at": [2]}, "proxy_anchor": {}},
            "spaces": {loss: space.to_dict() for loss, space in self.spaces.items()},
        }

    def make_record(
        self,
        loss: str,
        number: int,
        *,
        fixed: Mapping[str, ParamValue] | None = None,
        tags: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> TrialRecord:
        params: dict[str, ParamValue] = dict(self.spaces[loss].published[0].values)
        params |= {"alpha": 32.0 / (1 + number / 7), "batch_size": 180 - number}
        job: dict[str, Any] = {
            "trial": f"{loss}-{number:04d}",
            "loss": loss,
            "number": number,
            "origin": "sobol",
            "params": params,
            "seed": 100 + number,
            **changes,
        }
        version = self.spaces[loss].version_hash
        return TrialRecord(
            Job(**job),
            fixed={"embedding_dim": 64, "warmup_epochs": 1} if fixed is None else fixed,
            tags={"space_version": version, "data_fingerprint": "0123abcd"}
            if tags is None
            else tags,
            started=START_SECONDS + number,
        )

    def make_metrics(self, number: int, epoch: int) -> dict[str, float]:
        return {
            "map_at_r": 0.3 + 0.1 * math.sin(number) + 0.02 * epoch,
            "recall_at_1": 0.5 + 0.03 * epoch,
            "loss": 3.0 / epoch,
            "seconds": 1.25,
            "memory_mib": 512.0 + number,
        }

    def open_study(self, tracker: Tracker) -> None:
        tracker.open_study(
            name="groceries", plan=self.plan, losses=list(self.spaces), note="## Groceries"
        )

    def log_trial(self, tracker: Tracker, record: TrialRecord, state: Any = "finished") -> None:
        tracker.start_trial(record)
        job = record.job
        epochs = {"finished": self.epochs, "stopped": 1, "diverged": 2, "failed": 0}[state]
        for epoch in range(1, epochs + 1):
            values = self.make_metrics(job.number, epoch)
            if state == "diverged" and epoch == 2:
                values |= {"loss": math.nan, "map_at_r": math.nan, "recall_at_1": math.inf}
            tracker.log_epoch(job.trial, epoch, values, timestamp=record.started + epoch)
        error = "Traceback\nRuntimeError: out of memory" if state == "failed" else ""
        tracker.end_trial(
            job.trial, state=state, error=error, host="node-7", timestamp=record.started + 9
        )

    def log_study(self, tracker: Tracker) -> None:
        """Log the complete study, with trials of every origin and state."""
        self.open_study(tracker)
        tracker.log_baseline("validation", {"map_at_r": 0.11, "recall_at_1": 0.4})
        for loss in self.spaces:
            self.log_trial(tracker, self.make_record(loss, 0, origin="published"))
            for number, state in enumerate(["finished", "stopped", "diverged", "failed"], 1):
                self.log_trial(tracker, self.make_record(loss, number), state)
            self.log_trial(tracker, self.make_record(loss, 5, origin="bayes"))
            self.log_trial(tracker, self.make_record(loss, 6, origin="repeat"))
            sweep: dict[str, Any] = {"origin": "sweep", "swept": "alpha", "anchor": "published"}
            self.log_trial(tracker, self.make_record(loss, 7, **sweep))
            self.log_trial(tracker, self.make_record(loss, 8, origin="confirm", split="test"))
        tracker.log_baseline("test", {"map_at_r": 0.1})
        tracker.set_note("## Groceries\nIt is done.")
        tracker.end_study(state="FINISHED")


def make_tracked_study() -> TrackedStudy:
    """Return a study of two losses with different hyperparameters and units."""
    delta = Hyperparameter(Float(0.0, 0.5), "δ", "margin")
    angle = Hyperparameter(Float(0.0, 0.5), "m", "margin", unit="rad")
    return TrackedStudy(
        {
            "proxy_anchor": _make_space("proxy_anchor", "α", delta=delta),
            "circle": _make_space("circle", "γ", m=angle),
        }
    )


def get_runs_by_name(uri: str, experiment: str = "groceries") -> dict[str, Run]:
    """Return the runs of an experiment by name."""
    client = MlflowClient(uri)
    experiment_id = client.get_experiment_by_name(experiment).experiment_id
    runs = client.search_runs([experiment_id], max_results=1000)
    return {run.info.run_name: run for run in runs}
