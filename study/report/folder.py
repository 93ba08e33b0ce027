"""Which files of a report's folder did an earlier report leave behind?

A loss that is no longer there, or a figure that has nothing to show any more, must not lie beside
the new page as if it belonged to it. Only what a report wrote is removed: it keeps a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

MANIFEST = "manifest.json"
FOLDERS = ("figures", "tables")


def prepare(out: Path) -> None:
    """Make the folders of a report."""
    for folder in FOLDERS:
        (out / folder).mkdir(parents=True, exist_ok=True)


def tidy(out: Path, written: Iterable[Path]) -> None:
    """Remove figures and tables of the report that was here before and that this one did not write.

    Files that no report wrote stay, whatever their names.
    """
    ours = sorted({path.relative_to(out).as_posix() for path in written})
    for name in set(_before(out)) - set(ours):
        (out / name).unlink(missing_ok=True)
    text = json.dumps({"files": ours}, indent=1, ensure_ascii=False)
    (out / MANIFEST).write_text(text + "\n", "utf-8")


def _before(out: Path) -> list[str]:
    """What the list says was written; names that lead elsewhere are not ours."""
    try:
        names = json.loads((out / MANIFEST).read_text("utf-8"))["files"]
        parts = [(str(name), Path(str(name)).parts) for name in names]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [n for n, p in parts if len(p) == 2 and p[0] in FOLDERS and p[1] not in ("..", ".")]
