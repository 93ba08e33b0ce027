"""What does a study remember of what it began with? Its data, its weights and the untrained row.

Scores on other pictures, or from other weights, cannot be compared with those that are there
already, and a backbone that does not train needs to be scored once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study.errors import StudyError
from study.jobs import Split

DATA_FILE = "data.json"
FORMAT = 2  # raise when fingerprints are made in another way: older ones are not compared


class DataRecord:
    """The file `data.json` of a study's directory.

    Args:
        directory: The study's.
        fingerprint: Of the data as they are now.
        weights: Of the weights that trials start from; empty when each draws its own.

    Raises:
        StudyError: They are not those that the study began with.
    """

    def __init__(self, directory: Path, fingerprint: str, weights: str = "") -> None:
        self._path = directory / DATA_FILE
        self._now = {"fingerprint": fingerprint, "weights": weights}
        known = _read(self._path)
        if known.get("format") == FORMAT:
            self._compare(known, "fingerprint", f"data of {directory.name}")
            self._compare(known, "weights", f"weights that {directory.name} starts from")
        self._untrained: dict[str, dict[str, float]] = known.get("untrained", {})
        if known.get("format") != FORMAT:
            self._write()

    def _compare(self, known: Mapping[str, Any], key: str, what: str) -> None:
        now = self._now[key]
        before = known.get(key, now)
        if before != now:
            raise StudyError(
                f"the {what} are not those it began with (fingerprint {before}, now {now}), so new "
                f"scores could not be compared with the old: put the files back, or start a study "
                f"of another name (or delete {self._path} to mix them)"
            )

    def untrained(self, split: Split) -> dict[str, float] | None:
        """The untrained backbone's scores, if they are known."""
        return self._untrained.get(split)

    def remember(self, split: Split, scores: Mapping[str, float]) -> None:
        """Keep the untrained backbone's scores."""
        self._untrained[split] = dict(scores)
        self._write()

    def _write(self) -> None:
        text = json.dumps({"format": FORMAT, **self._now, "untrained": self._untrained})
        temporary = self._path.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self._path)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
