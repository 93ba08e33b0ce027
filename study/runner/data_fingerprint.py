"""Data fingerprint: the data, weights and baseline scores that a study started with.

Scores on other data or from other weights cannot be compared with the existing ones, and the
untrained backbone needs to be scored only once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study.errors import StudyError
from trainables.config import Split

DATA_FILE_NAME = "data.json"
FINGERPRINT_FORMAT = 2
"""Increased when fingerprints are computed differently; older ones are not compared."""


class DataFingerprint:
    """The file `data.json` of a study's directory.

    Args:
        directory: The study's directory.
        fingerprint: Fingerprint of the data now.
        weights: Fingerprint of the weights that trials start from; empty if they are random.

    Raises:
        StudyError: The data or weights changed since the study started.
    """

    def __init__(self, directory: Path, fingerprint: str, weights: str = "") -> None:
        self._path = directory / DATA_FILE_NAME
        self._current_fingerprints = {"fingerprint": fingerprint, "weights": weights}
        stored = _read_json(self._path)
        if stored.get("format") == FINGERPRINT_FORMAT:
            self._check_unchanged(stored, "fingerprint", f"data of {directory.name}")
            self._check_unchanged(stored, "weights", f"weights that {directory.name} starts from")
        self._baseline_scores: dict[str, dict[str, float]] = stored.get("untrained", {})
        if stored.get("format") != FINGERPRINT_FORMAT:
            self._write_file()

    def _check_unchanged(self, stored: Mapping[str, Any], key: str, what: str) -> None:
        now = self._current_fingerprints[key]
        before = stored.get(key, now)
        if before != now:
            raise StudyError(
                f"the {what} changed (fingerprint {before} at its start, {now} now), so new scores "
                "cannot be compared with old ones: restore the files, start a study with another "
                f"name, or delete {self._path} to mix them"
            )

    def get_baseline_scores(self, split: Split) -> dict[str, float] | None:
        """Return the untrained backbone's scores; None if they are not stored."""
        return self._baseline_scores.get(split)

    def store_baseline_scores(self, split: Split, scores: Mapping[str, float]) -> None:
        """Store the untrained backbone's scores."""
        self._baseline_scores[split] = dict(scores)
        self._write_file()

    def _write_file(self) -> None:
        text = json.dumps(
            {
                "format": FINGERPRINT_FORMAT,
                **self._current_fingerprints,
                "untrained": self._baseline_scores,
            }
        )
        temporary = self._path.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self._path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
