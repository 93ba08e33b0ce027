"""Checkpoints and data on S3, against a server of our own on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
import torch
from botocore.awsrequest import AWSResponse
from moto.core.botocore_stubber import MockRawResponse
from moto.server import ThreadedMotoServer

from trainables import objects
from trainables.checkpoints import (
    has_checkpoints,
    load_checkpoint,
    remove_checkpoint,
    save_checkpoint,
    try_place,
)
from trainables.data import load_dataset
from trainables.data.array_files import holds_features
from trainables.data.fetch import fetched

BUCKET = "images"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An S3 of our own."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture(autouse=True)
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, found as boto3 finds any."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    store = boto3.resource("s3")
    store.create_bucket(Bucket=BUCKET)
    store.Bucket(BUCKET).objects.all().delete()
    return BUCKET


def put(address: str, content: bytes) -> None:
    bucket, key = objects.bucket_and_key(address)
    boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=content)


def test_a_checkpoint_on_s3_is_what_was_saved() -> None:
    place = f"s3://{BUCKET}/runs/s"
    assert load_checkpoint(place, "circle-0001") is None
    for epoch in (1, 2):
        save_checkpoint(place, "circle-0001", {"epoch": epoch, "w": torch.arange(5) * epoch})
    save_checkpoint(place, "pml:X-0002", {"epoch": 7})
    loaded = load_checkpoint(place, "circle-0001")
    assert loaded is not None
    assert loaded["epoch"] == 2
    assert loaded["w"].tolist() == [0, 2, 4, 6, 8]
    is_there = has_checkpoints(place)
    assert is_there("circle-0001")
    assert is_there("pml:X-0002")
    assert not is_there("circle-0002")
    remove_checkpoint(place, "circle-0001")
    remove_checkpoint(place, "circle-0001")
    assert load_checkpoint(place, "circle-0001") is None


def test_a_large_checkpoint_goes_in_parts_and_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 takes no more than 5 GiB at once, and a node may not have that much memory to spare."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place, weights = f"s3://{BUCKET}/runs/s", torch.arange(5 * 2**20, dtype=torch.float32)
    save_checkpoint(place, "t", {"epoch": 3, "w": weights})
    (stored,) = objects.stored_below(f"{place}/t.pt")
    assert stored.size > 20 * 2**20
    assert stored.tag.endswith("-3"), "S3 marks what came in parts with their number"
    loaded = load_checkpoint(place, "t")
    assert loaded is not None
    assert torch.equal(loaded["w"], weights)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_on_s3_can_hold_no_code() -> None:
    import pickle

    place = f"s3://{BUCKET}/runs/s"
    put(f"{place}/t.pt", pickle.dumps(os.system))
    with pytest.raises(pickle.UnpicklingError):
        load_checkpoint(place, "t")


def test_s3_that_refuses_is_like_a_disk_that_refuses() -> None:
    with pytest.raises(OSError, match="s3://nobody-has-this"):
        save_checkpoint("s3://nobody-has-this/x", "t", {"epoch": 1})
    with pytest.raises(OSError, match="NoSuchBucket"):
        objects.stored_below("s3://nobody-has-this/x")


def test_a_place_without_the_right_to_list_is_refused() -> None:
    """There S3 says `forbidden` of an object that is missing; our server would say 404."""
    place, client = f"s3://{BUCKET}/runs", objects._client()

    def forbid_missing(request: Any, **_: Any) -> AWSResponse | None:
        stored = boto3.resource("s3").Bucket(BUCKET).objects.all()
        if any(request.url.endswith(item.key) for item in stored):
            return None
        return AWSResponse(request.url, 403, {}, MockRawResponse(b""))

    try_place(place)
    client.meta.events.register("before-send.s3.HeadObject", forbid_missing)
    try:
        with pytest.raises(OSError, match=rf"{place}/try-.*403.*Forbidden"):
            try_place(place)
    finally:
        client.meta.events.unregister("before-send.s3.HeadObject", forbid_missing)
    assert objects.stored_below(place) == [], "what was tried is gone"


def test_a_place_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    place = f"s3://{BUCKET}/runs"
    save_checkpoint(place, "t", {"epoch": 1})
    try_place(place)
    assert [stored.name for stored in objects.stored_below(place)] == ["t.pt"]
    with pytest.raises(OSError, match="NoSuchBucket"):
        try_place("s3://nobody-has-this/x")
    try_place(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        try_place(tmp_path / "file")


def test_a_prefix_is_fetched_once(tmp_path: Path) -> None:
    names = [f"train/c{c}/{i}.txt" for c in range(3) for i in range(4)]
    for name in names:
        put(f"s3://{BUCKET}/cub/{name}", name.encode())
    put(f"s3://{BUCKET}/cub2/other.txt", b"not below cub")
    folder = fetched(f"s3://{BUCKET}/cub", cache_dir=tmp_path)
    found = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert found == sorted(names)
    assert all((folder / name).read_text() == name for name in names)
    stamp = (folder / names[0]).stat().st_mtime_ns
    assert fetched(f"s3://{BUCKET}/cub/", cache_dir=tmp_path / "b") != folder
    assert fetched(f"s3://{BUCKET}/cub", cache_dir=tmp_path) == folder
    assert (folder / names[0]).stat().st_mtime_ns == stamp
    assert not list(tmp_path.glob("*.partial"))


def test_what_was_lost_is_fetched_again_and_what_changed_is_another_copy(tmp_path: Path) -> None:
    address = f"s3://{BUCKET}/d"
    put(f"{address}/a", b"one")
    put(f"{address}/b", b"two")
    folder = fetched(address, cache_dir=tmp_path)
    (folder / "a").unlink()
    assert fetched(address, cache_dir=tmp_path) == folder
    assert (folder / "a").read_bytes() == b"one"
    put(f"{address}/a", b"eno")
    changed = fetched(address, cache_dir=tmp_path)
    assert changed != folder
    assert (changed / "a").read_bytes() == b"eno"


def test_a_copy_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    address = f"s3://{BUCKET}/d"
    for name in "abc":
        put(f"{address}/{name}", name.encode() * 10)
    whole = fetched(address, cache_dir=tmp_path)
    partial = whole.with_name(whole.name + ".partial")
    whole.rename(partial)
    (partial / "a").write_bytes(b"X" * 10)  # right size: kept, which shows it is not fetched again
    (partial / "b").write_bytes(b"half")
    (partial / "c").unlink()
    assert fetched(address, cache_dir=tmp_path) == whole
    contents = [(whole / name).read_bytes() for name in "abc"]
    assert contents == [b"X" * 10, b"b" * 10, b"c" * 10]


def test_processes_of_a_node_share_one_copy(tmp_path: Path) -> None:
    for i in range(40):
        put(f"s3://{BUCKET}/many/{i}", os.urandom(2000))
    code = (
        "import sys; from pathlib import Path; from trainables.data.fetch import fetched\n"
        "said = []\n"
        "fetched(sys.argv[1], cache_dir=Path(sys.argv[2]), progress=lambda *a: said.append(a))\n"
        "print(sum(not 'another' in a[0] for a in said))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, f"s3://{BUCKET}/many", str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        for _ in range(2)
    ]
    counts = [int(process.communicate(timeout=60)[0]) for process in started]
    assert sorted(counts) == [0, 40]


def test_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    put(f"s3://{BUCKET}/bad/x/../../../escaped", b"x")
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        fetched(f"s3://{BUCKET}/bad", cache_dir=tmp_path)
    with pytest.raises(ValueError, match="nothing is stored"):
        fetched(f"s3://{BUCKET}/none", cache_dir=tmp_path)


def test_a_data_set_can_be_one_object_on_s3(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(8), 4)
    features = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
    np.savez(tmp_path / "f.npz", features=features, labels=labels)
    put(f"s3://{BUCKET}/sets/f.npz", (tmp_path / "f.npz").read_bytes())
    near = load_dataset("arrays", cache_dir=tmp_path / "a", path=str(tmp_path / "f.npz"))
    far = load_dataset("arrays", cache_dir=tmp_path / "b", path=f"s3://{BUCKET}/sets/f.npz")
    assert far.fingerprint == near.fingerprint
    assert np.array_equal(far.train.items, near.train.items)


def test_features_on_s3_are_known_without_fetching_them(tmp_path: Path) -> None:
    """By a few kilobytes of the file, whatever its size."""
    features, images = np.ones((300, 700), np.float32), np.ones((300, 700, 3), np.uint8)
    np.savez(tmp_path / "f.npz", features=features, labels=np.arange(300))
    np.savez(tmp_path / "i.npz", images=images, labels=np.arange(300))
    np.save(tmp_path / "f.npy", features)
    np.save(tmp_path / "i.npy", images)
    for path in tmp_path.iterdir():
        put(f"s3://{BUCKET}/sets/{path.name}", path.read_bytes())
        assert holds_features(f"s3://{BUCKET}/sets/{path.name}") == (path.stem == "f"), path.name
        assert holds_features(str(path)) == (path.stem == "f"), path.name
    assert not holds_features(f"s3://{BUCKET}/sets/none.npz")
    with objects.opened(f"s3://{BUCKET}/sets/f.npz") as file:
        assert file.read(2) == b"PK"
        assert file.raw._at <= objects.READ_BYTES  # type: ignore[attr-defined]
