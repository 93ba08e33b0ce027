"""What does a study remember of its data? That they are those it began with, and the untrained row.

Scores on other pictures cannot be compared with those that are there already, and a backbone that
does not train needs to be scored once.
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

    Raises:
        StudyError: They are not those that the study began with.
    """

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self._path = directory / DATA_FILE
        known = _read(self._path)
        before = known["fingerprint"] if known.get("format") == FORMAT else fingerprint
        if before != fingerprint:
            raise StudyError(
                f"the data of {directory.name} are not those it began with (fingerprint {before}, "
                f"now {fingerprint}), so new scores could not be compared with the old: put the "
                f"files back, or start a study of another name (or delete {self._path} to mix them)"
            )
        self._untrained: dict[str, dict[str, float]] = known.get("untrained", {})
        self._fingerprint = fingerprint
        if known.get("format") != FORMAT:
            self._write()

    def untrained(self, split: Split) -> dict[str, float] | None:
        """The untrained backbone's scores, if they are known."""
        return self._untrained.get(split)

    def remember(self, split: Split, scores: Mapping[str, float]) -> None:
        """Keep the untrained backbone's scores."""
        self._untrained[split] = dict(scores)
        self._write()

    def _write(self) -> None:
        known = {"fingerprint": self._fingerprint, "untrained": self._untrained}
        text = json.dumps({"format": FORMAT, **known})
        temporary = self._path.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self._path)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
