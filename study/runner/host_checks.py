"""Host checks: warnings about hosts with unexpected data, weights, GPUs or checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from study.runner.display import NullDisplay, ProgressDisplay

ENVIRONMENT_NAMES = {
    "precision": "precision",
    "gpu": "kind of GPU",
    "torch_version": "version of torch",
}
"""What the trials of a run should have in common, by key of a result."""


class HostChecks:
    """Compares what trials report about their hosts with the study; warns once per host.

    Args:
        display: Shows the warnings.
        expects_gpu: Whether trials are given GPUs.
        fingerprint: Of the study's data on this machine; empty skips the comparison.
        weights: Of the weights that trials start from; empty skips the comparison.
    """

    def __init__(
        self,
        display: ProgressDisplay | None = None,
        *,
        expects_gpu: bool = False,
        fingerprint: str = "",
        weights: str = "",
    ) -> None:
        self._display, self._expects_gpu = display or NullDisplay(), expects_gpu
        self._fingerprints = {"fingerprint": fingerprint, "weights": weights}
        self._differing_hosts: set[tuple[str, str]] = set()
        self._hosts_without_gpu: set[str] = set()
        self._warned_trials: set[str] = set()
        self._environments: dict[str, str] = {}

    def check_result(self, trial: str, result: Mapping[str, Any]) -> None:
        """Check one epoch's result of a trial."""
        host = str(result.get("host", ""))
        self._check_checkpoint(trial, str(result.get("warning", "")))
        self._check_fingerprints(host, result)
        self._check_gpu(host, str(result.get("device", "")))
        for key, what in ENVIRONMENT_NAMES.items():
            self._check_environment(host, what, str(result.get(key, "")))

    def _check_checkpoint(self, trial: str, warning: str) -> None:
        """Show a trial's checkpoint warning once, until the problem is gone."""
        if not warning:
            self._warned_trials.discard(trial)
        elif trial not in self._warned_trials:
            self._warned_trials.add(trial)
            self._display.show_warning(f"{trial}: {warning}")

    def _check_fingerprints(self, host: str, result: Mapping[str, Any]) -> None:
        for key, what in (("fingerprint", "data"), ("weights", "backbone weights")):
            expected, reported = self._fingerprints[key], str(result.get(key, ""))
            if not expected or reported in ("", expected) or (host, key) in self._differing_hosts:
                continue
            self._differing_hosts.add((host, key))
            self._display.show_warning(
                f"the {what} on {host} differ from the study's (fingerprint {reported}, here "
                f"{expected}): scores from that host cannot be compared with others; copy them "
                "again"
            )

    def _check_environment(self, host: str, what: str, value: str) -> None:
        """Warn once if trials differ in what changes the last digits of their scores."""
        if not value:
            return
        known = self._environments.setdefault(what, value)
        if known != value and (what, "") not in self._differing_hosts:
            self._differing_hosts.add((what, ""))
            self._display.show_warning(
                f"the trials of this study differ in {what}: {value} on {host}, {known} before; "
                "small differences between their scores may come from that (set "
                "training.precision: fp32, or use nodes of one kind)"
            )

    def _check_gpu(self, host: str, device: str) -> None:
        if self._expects_gpu and device == "cpu" and host not in self._hosts_without_gpu:
            self._hosts_without_gpu.add(host)
            self._display.show_warning(
                f"{host}: trials were given a GPU, but torch does not see one (a driver too old "
                "for this torch, or a torch without CUDA?); they train on the CPU"
            )
