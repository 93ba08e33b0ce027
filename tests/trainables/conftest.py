"""Fixtures of the trainables package's tests."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.support.rank_pool import RankPool
from tests.support.slow_disk import SlowDisk

S3_BUCKET = "images"


@pytest.fixture(scope="session")
def rank_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Four gloo ranks, started once."""
    pool = RankPool(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    """Disk that blocks every checkpoint of this process until it is released."""
    return SlowDisk(monkeypatch)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Address of a local S3 server."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def s3_uri(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URI of an empty bucket that boto3 finds through environment variables."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    store = boto3.resource("s3")
    store.create_bucket(Bucket=S3_BUCKET)
    store.Bucket(S3_BUCKET).objects.all().delete()
    return f"s3://{S3_BUCKET}"
