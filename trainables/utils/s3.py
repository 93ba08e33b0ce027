"""S3 client: upload, download, range reads, listing and deletion of objects.

This is the only module that imports boto3. Credentials, region and endpoint are found in boto3's
usual way: the node's IAM role on AWS, otherwise environment variables. Errors of S3 are raised as
OSError, like those of a disk.
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

S3_SCHEME = "s3://"
LIST_PAGE_SIZE = 1000
TRANSFER_PART_BYTES = 8 * 2**20
READ_BUFFER_BYTES = 2**16


@dataclass(frozen=True)
class S3Object:
    """An object: its key relative to the listed prefix, its size in bytes and its ETag."""

    name: str
    size: int
    etag: str


def is_s3_uri(location: str | Path) -> bool:
    """Whether a location is on S3."""
    return str(location).startswith(S3_SCHEME)


def split_s3_uri(uri: str) -> tuple[str, str]:
    """Split an S3 URI into bucket and key.

    >>> split_s3_uri("s3://images/cub/train")
    ('images', 'cub/train')
    """
    bucket, _, key = uri.removeprefix(S3_SCHEME).partition("/")
    if not bucket:
        raise ValueError(f"an S3 URI must be s3://BUCKET/KEY, but got {uri!r}")
    return bucket, key


def upload_file(path: Path, uri: str) -> None:
    """Upload a file as an object; it appears only when it is complete.

    The upload is in parts of a few MiB: S3 accepts at most 5 GiB at once, and the file does not
    have to fit in memory.

    Raises:
        OSError: If S3 rejects it or does not respond.
    """
    bucket, key = split_s3_uri(uri)
    with _translate_s3_errors(uri):
        _get_client().upload_file(str(path), bucket, key, Config=_transfer_config())


def download_file(uri: str, path: Path) -> None:
    """Download an object to a file, in parts.

    Raises:
        FileNotFoundError: If the object does not exist.
        OSError: If S3 does not respond or the disk is full.
    """
    bucket, key = split_s3_uri(uri)
    with _translate_s3_errors(uri):
        _get_client().download_file(bucket, key, str(path), Config=_transfer_config())


def open_s3_object(uri: str) -> BinaryIO:
    """Open an object for reading; only the ranges that are read are downloaded.

    Raises:
        FileNotFoundError: If the object does not exist.
        OSError: If S3 does not respond.
    """
    return cast(BinaryIO, io.BufferedReader(_S3RangeReader(uri), READ_BUFFER_BYTES))


class _S3RangeReader(io.RawIOBase):
    """Raw file that reads byte ranges of an object."""

    def __init__(self, uri: str) -> None:
        self._uri, (self._bucket, self._key) = uri, split_s3_uri(uri)
        with _translate_s3_errors(uri):
            head = _get_client().head_object(Bucket=self._bucket, Key=self._key)
        self._size, self._position = int(head["ContentLength"]), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        last = min(self._position + len(buffer), self._size) - 1
        if last < self._position:
            return 0
        byte_range = f"bytes={self._position}-{last}"
        with _translate_s3_errors(self._uri):
            response = _get_client().get_object(
                Bucket=self._bucket, Key=self._key, Range=byte_range
            )
            content: bytes = response["Body"].read()
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def remove_object(uri: str) -> None:
    """Delete an object, if it exists."""
    bucket, key = split_s3_uri(uri)
    with _translate_s3_errors(uri):
        _get_client().delete_object(Bucket=bucket, Key=key)


def list_s3_objects(uri: str) -> list[S3Object]:
    """Return all objects below a prefix, or the object with exactly this key, by name."""
    bucket, key = split_s3_uri(uri)
    prefix = key.rstrip("/")
    objects = []
    for item in _iter_listed_objects(bucket, prefix):
        rest = item["Key"].removeprefix(prefix)
        inside = not prefix or rest.startswith("/") or not rest
        if inside and not item["Key"].endswith("/"):
            objects.append(S3Object(rest.lstrip("/"), int(item["Size"]), item["ETag"].strip('"')))
    return sorted(objects, key=lambda item: item.name)


def _iter_listed_objects(bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    with _translate_s3_errors(f"{S3_SCHEME}{bucket}/{prefix}"):
        pages = _get_client().get_paginator("list_objects_v2")
        for page in pages.paginate(
            Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": LIST_PAGE_SIZE}
        ):
            yield from page.get("Contents", [])


def _get_client() -> Any:
    return _create_cached_client(os.getpid(), os.environ.get("AWS_ENDPOINT_URL", ""))


@functools.lru_cache(maxsize=2)
def _create_cached_client(process: int, endpoint: str) -> Any:
    """Cached, because creating a client takes a tenth of a second; per process, because a client
    must not be used after a fork.
    """
    import boto3
    from botocore.config import Config

    settings = Config(
        retries={"mode": "standard", "max_attempts": 6}, connect_timeout=10, read_timeout=60
    )
    return boto3.client("s3", config=settings)


def _transfer_config() -> Any:
    from boto3.s3.transfer import TransferConfig

    # boto3 enlarges the parts if a file would exceed the 10,000 parts that S3 allows.
    return TransferConfig(
        multipart_threshold=TRANSFER_PART_BYTES,
        multipart_chunksize=TRANSFER_PART_BYTES,
        max_concurrency=4,
    )


@contextmanager
def _translate_s3_errors(uri: str) -> Iterator[None]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError, Boto3Error) as error:
        missing = isinstance(error, ClientError) and error.response["Error"]["Code"] == "404"
        raise (FileNotFoundError if missing else OSError)(f"{uri}: {error}") from error
