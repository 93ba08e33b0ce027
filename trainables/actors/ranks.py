"""Ranks of a trial: Ray actors inside the trial's placement group.

The actor that runs the trial owns its rank actors: Ray ends them when the owner ends, for whatever
reason, and frees their CPUs and GPUs with the placement group. Rank actors are reused by the next
trial of the same actor. The placement group has one bundle per node; each bundle holds the same
number of ranks.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainables.actors.rank_actor import WATCH_GROUP, RankActor
from trainables.actors.rank_devices import UnequalDevicesError, choose_backend, share_gpu_ids
from trainables.actors.stall_monitor import StallMonitor, describe_stall
from trainables.config import TrialSpec
from trainables.utils.device_errors import format_error_line

# Time that ranks have to notice the failure of another rank before they are killed.
RANK_GRACE_SECONDS = 5.0

PROGRESS_INTERVAL_SECONDS = 20.0
"""Time between two questions whether ranks make progress; shorter epochs are not asked."""

REPLY_TIMEOUT_SECONDS = 10.0
"""Time that a rank has to reply while it trains."""


MAX_MEMORY_LEVELS = 16
"""How often the memory of a step is reduced: a share of 65,536 images can be halved so often."""


class RanksLostError(Exception):
    """A rank's process died. The trial can continue from its checkpoint on new ranks."""


class RankGroup:
    """Handle of the trial's actor to the ranks of its trial.

    Args:
        resources: `ranks_per_trial`, `nodes_per_trial`, `cpus_per_trial` and `gpus_per_trial`;
            CPUs and GPUs are divided equally among the ranks.
        rank_class: Class of the rank actors, `RankActor` by default.
    """

    def __init__(self, resources: Mapping[str, Any], rank_class: type[Any] | None = None) -> None:
        self._resources, self._rank_class = resources, rank_class or RankActor
        self._actors: list[Any] = []
        self._spec: TrialSpec | None = None
        self._is_assigned = False

    def assign_trial(self, spec: TrialSpec) -> None:
        """Set the next trial; the ranks receive it with the first step."""
        self._spec, self._is_assigned = spec, False

    def step(self) -> dict[str, Any]:
        """Train one epoch on all ranks; return the first rank's report, or that of a failed rank.

        Ranks that cannot train together, or make no progress, are killed and the trial is lost. If
        a rank runs out of memory, all ranks continue from the checkpoint with smaller
        micro-batches.

        Raises:
            RanksLostError: If a rank's process died. All ranks are killed.
        """
        report = self._run_step()
        while report.get("out_of_memory") and self._reduce_memory():
            report = self._run_step()
        return report

    def _reduce_memory(self) -> bool:
        """Let all ranks use less memory; return whether the trial may be tried again."""
        assert self._spec is not None
        level = int(self._spec.resources.get("memory_level", 0)) + 1
        self.assign_trial(
            replace(self._spec, resources={**self._spec.resources, "memory_level": level})
        )
        return level <= MAX_MEMORY_LEVELS

    def _run_step(self) -> dict[str, Any]:
        assert self._spec is not None
        try:
            if not self._actors:
                self._create_actors()
            if not self._is_assigned:
                ray.get([actor.assign_trial.remote(self._spec.to_dict()) for actor in self._actors])
                self._is_assigned = True
            reports = self._collect_reports()
        except RayActorError as error:
            self.close()
            raise RanksLostError(f"a rank of the trial died: {format_error_line(error)}") from None
        except UnequalDevicesError as error:
            self.close()
            return _make_lost_report(str(error), faulty_gpu=error.faulty_gpu, hardware_fault=True)
        return self._combine_reports(reports)

    def close(self) -> None:
        """Kill all ranks."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._is_assigned = [], False

    def _create_actors(self) -> None:
        group = get_current_placement_group()
        if group is None:
            raise RuntimeError(
                "ranks must be created inside a placement group, but the trial has none"
            )
        ranks = int(self._resources["ranks_per_trial"])
        per_bundle = ranks // int(self._resources.get("nodes_per_trial", 1))
        rank_class = ray.remote(concurrency_groups={WATCH_GROUP: 1})(self._rank_class)
        self._actors = [
            rank_class.options(
                num_cpus=float(self._resources.get("cpus_per_trial", 0)) / ranks,
                num_gpus=float(self._resources.get("gpus_per_trial", 0)) / ranks,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=rank // per_bundle
                ),
            ).remote(rank, ranks)
            for rank in range(ranks)
        ]
        self._choose_devices()
        self._form_process_group()

    def _choose_devices(self) -> None:
        """Show all ranks the GPUs of their node and let them use the same backend.

        Raises:
            UnequalDevicesError: If only some ranks see their GPU.
        """
        places = ray.get([actor.find_place.remote() for actor in self._actors])
        sees_gpu = ray.get(
            [
                actor.show_gpus.remote(visible, index)
                for actor, (visible, index) in zip(self._actors, share_gpu_ids(places), strict=True)
            ]
        )
        backend = choose_backend(self._resources, places, sees_gpu)
        ray.get([actor.set_backend.remote(backend) for actor in self._actors])

    def _form_process_group(self) -> None:
        """Form a process group, replacing the previous one."""
        address = ray.get(self._actors[0].open_rendezvous.remote())
        ray.get([actor.join_process_group.remote(*address) for actor in self._actors])
        self._is_assigned = False

    def _collect_reports(self) -> dict[int, dict[str, Any]]:
        """Return the ranks' reports; after a failure wait briefly, since other ranks may hang."""
        ranks = {actor.step.remote(): rank for rank, actor in enumerate(self._actors)}
        waiting, reports = list(ranks), dict[int, dict[str, Any]]()
        monitor, has_failed = StallMonitor(), False
        while waiting:
            timeout = RANK_GRACE_SECONDS if has_failed else PROGRESS_INTERVAL_SECONDS
            done, waiting = ray.wait(waiting, timeout=timeout)
            if done:
                reports[ranks[done[0]]] = report = ray.get(done[0])
                has_failed |= report["state"] in ("failed", "lost")
            elif has_failed:
                break
            elif stall := self._find_stall(monitor, [ranks[task] for task in waiting]):
                return dict.fromkeys(ranks.values(), stall)
        return reports

    def _find_stall(self, monitor: StallMonitor, training_ranks: list[int]) -> dict[str, Any]:
        """Return the report of a stalled trial; empty if its ranks make progress."""
        monitor.expect_replies(training_ranks)
        progress = self._ask_ranks(training_ranks, "measure_progress")
        for rank, seconds_since_beat in progress.items():
            monitor.record_progress(rank, seconds_since_beat)
        seconds = monitor.find_stall_seconds(training_ranks)
        if not seconds:
            return {}
        stacks = self._ask_ranks(training_ranks, "format_stacks")
        error, dump = describe_stall(
            seconds, {rank: stacks.get(rank, "") for rank in training_ranks}
        )
        return _make_lost_report(error, traceback=dump)

    def _ask_ranks(self, ranks: list[int], method: str) -> dict[int, Any]:
        """Return what ranks reply while they train, without those that do not reply in time."""
        tasks = {rank: getattr(self._actors[rank], method).remote() for rank in ranks}
        done, _ = ray.wait(
            list(tasks.values()), num_returns=len(tasks), timeout=REPLY_TIMEOUT_SECONDS
        )
        return {rank: ray.get(task) for rank, task in tasks.items() if task in done}

    def _combine_reports(self, reports: dict[int, dict[str, Any]]) -> dict[str, Any]:
        broken = [report.pop("broken", False) for report in reports.values()]
        ordered = [reports[rank] for rank in sorted(reports)]
        failed = [report for report in ordered if report["state"] == "failed"]
        lost = [report for report in ordered if report["state"] == "lost"]
        complete = len(reports) == len(self._actors) and not any(broken)
        if not failed and not lost and complete:
            return reports[0]
        if not failed:
            self.close()
            return _select_lost_report(ordered)
        try:
            if complete:
                # The ranks may have failed at different points of an exchange.
                self._form_process_group()
        except Exception:
            complete = False
        if not complete:
            self.close()
        return failed[0]


def _select_lost_report(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the report that says why ranks were lost.

    Raises:
        RanksLostError: If none does: a rank or its node has exited. The error frees the trial's
            placement group, which may contain a dead node.
    """
    for report in reports:
        if report.get("faulty_gpu") or report.get("traceback"):
            return report
    raise RanksLostError(next(report["error"] for report in reports if report["error"]))


def _make_lost_report(error: str, **details: Any) -> dict[str, Any]:
    return {"state": "lost", "epoch": 0, "host": socket.gethostname(), "error": error, **details}
