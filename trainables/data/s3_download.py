"""Downloads of data from S3, once per node.

The copy is a directory `s3-KEY` of the node's cache; KEY is a hash of the address and of S3's
listing (names, sizes, ETags), so changed data get a new copy. One process downloads, under a file
lock that the kernel releases if the process dies, to `s3-KEY.partial`; a later process continues
there. A finished copy gets its final name in one rename.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from trainables.data.cache import DataProgressCallback, hold_file_lock
from trainables.utils import s3
from trainables.utils.s3 import S3Object

N_DOWNLOAD_THREADS = 16
_TEMPORARY_SUFFIX = ".writing"


def download_once(
    address: str, *, cache_dir: Path, progress: DataProgressCallback | None = None
) -> Path:
    """Return the local copy of an S3 prefix (a folder) or of one object (a file).

    Args:
        address: s3://BUCKET/PREFIX or s3://BUCKET/KEY.
        cache_dir: Cache directory of this node.
        progress: Called with (label, files done, total files) while files are downloaded.

    Raises:
        ValueError: If there is nothing at the address, or if a name would leave the folder.
        OSError: If S3 does not answer, or if the disk is full.
    """
    objects = s3.list_s3_objects(address)
    single = [stored for stored in objects if not stored.name]
    if single:
        objects = [S3Object(PurePosixPath(address).name, single[0].size, single[0].etag)]
    if not objects:
        raise ValueError(f"nothing is stored at {address}")
    for stored in objects:
        _check_object_name(address, stored.name)
    listing = [[stored.name, stored.size, stored.etag] for stored in objects]
    key = hashlib.sha256(json.dumps([address, listing]).encode()).hexdigest()[:20]
    final = cache_dir / f"s3-{key}"
    cache_dir.mkdir(parents=True, exist_ok=True)
    source = address.rstrip("/").rsplit("/", 1)[0] if single else address.rstrip("/")
    if not _is_complete_copy(final, objects):
        label = f"downloading {address}"
        waiting = (lambda: progress(f"{label} (another process)", 0, 1)) if progress else None
        with hold_file_lock(final.with_name(final.name + ".lock"), waiting):
            if not _is_complete_copy(final, objects):
                _download_missing(source, objects, final, label, progress)
    return final / objects[0].name if single else final


def _download_missing(
    source: str,
    objects: Sequence[S3Object],
    final: Path,
    label: str,
    progress: DataProgressCallback | None,
) -> None:
    """Download the missing objects; the caller holds the lock of the copy."""
    partial = final.with_name(final.name + ".partial")
    if final.exists():  # a file was removed from it and must be downloaded again
        final.rename(partial)
    _require_disk_space(partial, objects)
    missing = [s for s in objects if not _is_downloaded(partial, s)]
    done = len(objects) - len(missing)
    with ThreadPoolExecutor(N_DOWNLOAD_THREADS) as pool:
        for _ in pool.map(lambda stored: _download_object(source, stored, partial), missing):
            done += 1
            if progress:
                progress(label, done, len(objects))
    partial.rename(final)


def _download_object(source: str, stored: S3Object, folder: Path) -> None:
    path = folder / stored.name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + _TEMPORARY_SUFFIX)
    s3.download_file(f"{source}/{stored.name}", temporary)
    if temporary.stat().st_size != stored.size:
        raise OSError(f"{source}/{stored.name} changed during the download")
    temporary.replace(path)  # only complete files get their final name


def _is_downloaded(folder: Path, stored: S3Object) -> bool:
    try:
        return (folder / stored.name).stat().st_size == stored.size
    except OSError:
        return False


def _is_complete_copy(folder: Path, objects: Sequence[S3Object]) -> bool:
    return folder.exists() and all(_is_downloaded(folder, stored) for stored in objects)


def _require_disk_space(partial: Path, objects: Sequence[S3Object]) -> None:
    partial.mkdir(parents=True, exist_ok=True)
    need = sum(stored.size for stored in objects if not _is_downloaded(partial, stored))
    free = shutil.disk_usage(partial).free
    if need > free:
        raise ValueError(
            f"the cache needs {need / 2**30:.1f} GiB in {partial.parent}, where "
            f"{free / 2**30:.1f} GiB are free; set another cache directory"
        )


def _check_object_name(address: str, name: str) -> None:
    """Raise a ValueError for a name, which may be any text on S3, that would leave the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ValueError(f"{address} contains {name!r}, which cannot be the name of a file")
