"""Data on S3, fetched once per node.

The copy is a directory `s3-KEY` of the node's cache; KEY is a hash of the address and of what S3
lists there (names, sizes, ETags), so data that changed are another copy. One process fetches, under
a lock that goes with it, into `s3-KEY.partial`; a later one goes on where it ended. A finished copy
gets its name in one rename.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from trainables import objects
from trainables.data.cache import Progress, locked
from trainables.objects import Stored

THREADS = 16
_WRITING = ".writing"


def fetched(address: str, *, cache_dir: Path, progress: Progress | None = None) -> Path:
    """The local copy of an S3 prefix (a folder) or of one object (a file).

    Raises:
        ValueError: There is nothing at the address, or a name that would leave the folder.
        OSError: S3 does not answer, or the disk is full.
    """
    found = objects.stored_below(address)
    single = [stored for stored in found if not stored.name]
    if single:
        found = [Stored(PurePosixPath(address).name, single[0].size, single[0].tag)]
    if not found:
        raise ValueError(f"nothing is stored at {address}.")
    for stored in found:
        _check_name(address, stored.name)
    listing = [[stored.name, stored.size, stored.tag] for stored in found]
    key = hashlib.sha256(json.dumps([address, listing]).encode()).hexdigest()[:20]
    final = cache_dir / f"s3-{key}"
    cache_dir.mkdir(parents=True, exist_ok=True)
    source = address.rstrip("/").rsplit("/", 1)[0] if single else address.rstrip("/")
    if not _is_whole(final, found):
        label = f"fetching {address}"
        waiting = (lambda: progress(f"{label} (another process)", 0, 1)) if progress else None
        with locked(final.with_name(final.name + ".lock"), waiting):
            if not _is_whole(final, found):
                _fetch(source, found, final, label, progress)
    return final / found[0].name if single else final


def _fetch(
    source: str, found: Sequence[Stored], final: Path, label: str, progress: Progress | None
) -> None:
    """Fetch what is missing, under the copy's lock."""
    partial = final.with_name(final.name + ".partial")
    if final.exists():  # something was removed from it since: fetch that again
        final.rename(partial)
    _require_space(partial, found)
    missing = [s for s in found if not _is_there(partial, s)]
    done = len(found) - len(missing)
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(lambda stored: _fetch_one(source, stored, partial), missing):
            done += 1
            if progress:
                progress(label, done, len(found))
    partial.rename(final)


def _fetch_one(source: str, stored: Stored, folder: Path) -> None:
    path = folder / stored.name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + _WRITING)
    objects.download(f"{source}/{stored.name}", temporary)
    if temporary.stat().st_size != stored.size:
        raise OSError(f"{source}/{stored.name} changed while it was fetched")
    temporary.replace(path)  # a file of this name is whole


def _is_there(folder: Path, stored: Stored) -> bool:
    try:
        return (folder / stored.name).stat().st_size == stored.size
    except OSError:
        return False


def _is_whole(folder: Path, found: Sequence[Stored]) -> bool:
    return folder.exists() and all(_is_there(folder, stored) for stored in found)


def _require_space(partial: Path, found: Sequence[Stored]) -> None:
    partial.mkdir(parents=True, exist_ok=True)
    need = sum(stored.size for stored in found if not _is_there(partial, stored))
    free = shutil.disk_usage(partial).free
    if need > free:
        raise ValueError(
            f"the cache needs {need / 2**30:.1f} GiB in {partial.parent}, where "
            f"{free / 2**30:.1f} GiB are free; name another cache directory."
        )


def _check_name(address: str, name: str) -> None:
    """Names on S3 may hold anything; a copy must stay inside its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ValueError(f"{address} holds {name!r}, which cannot be the name of a file.")
