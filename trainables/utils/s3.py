"""S3 objects, as few calls as this project needs; the only file that imports boto3.

Credentials, region and endpoint are found as boto3 always does: the node's IAM role on AWS, else
environment variables. Whatever S3 refuses is an OSError, like a disk that refuses.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

SCHEME = "s3://"
PAGE = 1000
PART_BYTES = 8 * 2**20
READ_BYTES = 2**16


@dataclass(frozen=True)
class Stored:
    """An object: its key below the prefix that was listed, its size in bytes and its ETag."""

    name: str
    size: int
    tag: str


def is_object(place: str | Path) -> bool:
    """Whether this names something on S3."""
    return str(place).startswith(SCHEME)


def bucket_and_key(address: str) -> tuple[str, str]:
    """The two parts of an address.

    >>> bucket_and_key("s3://images/cub/train")
    ('images', 'cub/train')
    """
    bucket, _, key = address.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise ValueError(f"an S3 address is s3://BUCKET/KEY, got {address!r}.")
    return bucket, key


def upload(path: Path, address: str) -> None:
    """Store a file as an object, whole or not at all.

    It goes in parts of a few MiB: S3 takes at most 5 GiB at once, and no node has to hold it all.
    """
    bucket, key = bucket_and_key(address)
    with _as_os_error(address):
        _client().upload_file(str(path), bucket, key, Config=_transfer())


def download(address: str, path: Path) -> None:
    """Write an object to a file, in parts.

    Raises:
        FileNotFoundError: There is no such object.
        OSError: S3 does not answer, or the disk is full.
    """
    bucket, key = bucket_and_key(address)
    with _as_os_error(address):
        _client().download_file(bucket, key, str(path), Config=_transfer())


def opened(address: str) -> BinaryIO:
    """An object as a file to read parts of: only what is read is fetched.

    Raises:
        FileNotFoundError: There is no such object.
        OSError: S3 does not answer.
    """
    return cast(BinaryIO, io.BufferedReader(_Remote(address), READ_BYTES))


class _Remote(io.RawIOBase):
    """Reads an object by ranges of bytes."""

    def __init__(self, address: str) -> None:
        self._address, (self._bucket, self._key) = address, bucket_and_key(address)
        with _as_os_error(address):
            head = _client().head_object(Bucket=self._bucket, Key=self._key)
        self._size, self._at = int(head["ContentLength"]), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        last = min(self._at + len(buffer), self._size) - 1
        if last < self._at:
            return 0
        part = f"bytes={self._at}-{last}"
        with _as_os_error(self._address):
            answer = _client().get_object(Bucket=self._bucket, Key=self._key, Range=part)
            content: bytes = answer["Body"].read()
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def remove(address: str) -> None:
    """Delete an object, if it exists."""
    bucket, key = bucket_and_key(address)
    with _as_os_error(address):
        _client().delete_object(Bucket=bucket, Key=key)


def stored_below(address: str) -> list[Stored]:
    """All objects below a prefix, or the one of this very name; sorted by name."""
    bucket, key = bucket_and_key(address)
    prefix = key.rstrip("/")
    found = []
    for item in _listed(bucket, prefix):
        rest = item["Key"].removeprefix(prefix)
        inside = not prefix or rest.startswith("/") or not rest
        if inside and not item["Key"].endswith("/"):
            found.append(Stored(rest.lstrip("/"), int(item["Size"]), item["ETag"].strip('"')))
    return sorted(found, key=lambda stored: stored.name)


def _listed(bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    with _as_os_error(f"{SCHEME}{bucket}/{prefix}"):
        pages = _client().get_paginator("list_objects_v2")
        for page in pages.paginate(
            Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": PAGE}
        ):
            yield from page.get("Contents", [])


def _client() -> Any:
    return _client_of(os.getpid(), os.environ.get("AWS_ENDPOINT_URL", ""))


@functools.lru_cache(maxsize=2)
def _client_of(process: int, endpoint: str) -> Any:
    """A client takes a tenth of a second to make and may not cross a fork."""
    import boto3
    from botocore.config import Config

    settings = Config(
        retries={"mode": "standard", "max_attempts": 6}, connect_timeout=10, read_timeout=60
    )
    return boto3.client("s3", config=settings)


def _transfer() -> Any:
    from boto3.s3.transfer import TransferConfig

    # boto3 makes parts larger by itself where a file would have more than the 10,000 S3 allows.
    return TransferConfig(
        multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=4
    )


@contextmanager
def _as_os_error(address: str) -> Iterator[None]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError, Boto3Error) as error:
        missing = isinstance(error, ClientError) and error.response["Error"]["Code"] == "404"
        raise (FileNotFoundError if missing else OSError)(f"{address}: {error}") from error
