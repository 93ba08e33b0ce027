"""Checkpoints on disk and on S3: atomic replacement, safe loading, and errors of the storage."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
import torch
from botocore.awsrequest import AWSResponse
from moto.core.botocore_stubber import MockRawResponse

from tests.support.s3_objects import put_object
from tests.support.slow_disk import SlowDisk
from trainables.training.checkpoints import (
    check_writable,
    checkpoint_path,
    load_checkpoint,
    make_checkpoint_lookup,
    read_checkpoint,
    remove_checkpoint,
    remove_partial_checkpoints,
    save_checkpoint,
)
from trainables.utils import s3


def test_a_full_disk_is_an_os_error_for_large_tensors_too(tmp_path: Path) -> None:
    """torch's own writer raises RuntimeError, which would fail the trial."""
    code = (
        "import resource, sys, torch\n"
        "from trainables.training.checkpoints import save_checkpoint\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n"
        "try:\n"
        "    save_checkpoint(sys.argv[1], 't', {'weights': torch.zeros(2**21)})\n"
        "except OSError as error:\n"
        "    print('OSError', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("OSError"), done.stdout + done.stderr
    assert not list(tmp_path.iterdir()), "no partial file is left"


def test_a_partial_checkpoint_is_never_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, "a-0", {"epoch": 1})

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(tmp_path, "a-0", {"epoch": 2})
    assert load_checkpoint(tmp_path, "a-0") == {"epoch": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a-0.pt"]


def test_files_of_interrupted_writes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, "a-0", {"epoch": 1})
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # as if killed while writing
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, "a-0", {"epoch": 2})
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 2
    remove_partial_checkpoints(tmp_path, "a")
    assert len(list(tmp_path.iterdir())) == 2, "of another trial"
    remove_partial_checkpoints(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["a-0.pt"]


def test_a_checkpoint_removed_while_it_is_written_does_not_appear(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    """The study removes the checkpoint of a pruned trial whose process may still write it."""
    with ThreadPoolExecutor() as pool:
        writes = [pool.submit(save_checkpoint, tmp_path, t, {"epoch": 1}) for t in ("a-1", "a-10")]
        while len(list(tmp_path.iterdir())) < 2:
            slow_disk.wait_for_write()
        remove_checkpoint(tmp_path, "a-1")
        slow_disk.release()
        with pytest.raises(FileNotFoundError):
            writes[0].result()
        writes[1].result()
    assert [path.name for path in tmp_path.iterdir()] == ["a-10.pt"], "that of another trial"


class ExecutedWhenUnpickled:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("executed",)


def test_checkpoints_load_no_code(tmp_path: Path) -> None:
    checkpoint_path(tmp_path, "a-0").write_bytes(pickle.dumps(ExecutedWhenUnpickled()))
    with pytest.raises(pickle.UnpicklingError):
        load_checkpoint(tmp_path, "a-0")


def test_keys_stay_inside_the_directory(tmp_path: Path) -> None:
    assert checkpoint_path(tmp_path, "../../etc/x").parent == tmp_path
    assert checkpoint_path(tmp_path, "pml:Loss-1").parent == tmp_path


def test_a_truncated_file_is_damaged_and_not_an_error_of_the_disk(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "a-0", {"weights": torch.zeros(1000)})
    path = checkpoint_path(tmp_path, "a-0")
    content = path.read_bytes()
    for size in (len(content) // 2, 30):
        path.write_bytes(content[:size])
        with pytest.raises(Exception) as caught:  # torch raises several types
            read_checkpoint(path)
        assert not isinstance(caught.value, OSError)


def test_a_checkpoint_must_be_a_mapping(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt"):
        read_checkpoint(tmp_path / "a.pt")


def test_a_checkpoint_on_s3_is_what_was_saved(s3_uri: str) -> None:
    location = f"{s3_uri}/runs/s"
    assert load_checkpoint(location, "circle-0001") is None
    for epoch in (1, 2):
        save_checkpoint(location, "circle-0001", {"epoch": epoch, "w": torch.arange(5) * epoch})
    save_checkpoint(location, "pml:X-0002", {"epoch": 7})
    loaded = load_checkpoint(location, "circle-0001")
    assert loaded is not None
    assert loaded["epoch"] == 2
    assert loaded["w"].tolist() == [0, 2, 4, 6, 8]
    has_checkpoint = make_checkpoint_lookup(location)
    assert has_checkpoint("circle-0001")
    assert has_checkpoint("pml:X-0002")
    assert not has_checkpoint("circle-0002")
    remove_checkpoint(location, "circle-0001")
    remove_checkpoint(location, "circle-0001")
    assert load_checkpoint(location, "circle-0001") is None


def test_a_large_checkpoint_is_uploaded_in_parts_and_leaves_no_copy(
    s3_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 accepts at most 5 GiB at once, and a node may not have that much free memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    location, weights = f"{s3_uri}/runs/s", torch.arange(5 * 2**20, dtype=torch.float32)
    save_checkpoint(location, "t", {"epoch": 3, "w": weights})
    (stored,) = s3.list_s3_objects(f"{location}/t.pt")
    assert stored.size > 20 * 2**20
    assert stored.etag.endswith("-3"), "the ETag of a multipart upload ends with its parts"
    loaded = load_checkpoint(location, "t")
    assert loaded is not None
    assert torch.equal(loaded["w"], weights)
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_on_s3_load_no_code(s3_uri: str) -> None:
    location = f"{s3_uri}/runs/s"
    put_object(f"{location}/t.pt", pickle.dumps(os.system))
    with pytest.raises(pickle.UnpicklingError):
        load_checkpoint(location, "t")


def test_an_error_of_s3_is_an_os_error_like_that_of_a_disk(s3_uri: str) -> None:
    with pytest.raises(OSError, match="s3://nobody-has-this"):
        save_checkpoint("s3://nobody-has-this/x", "t", {"epoch": 1})


def test_a_location_without_permission_to_list_is_rejected(s3_uri: str) -> None:
    """AWS then responds with `forbidden` for a missing object; the local server with 404."""
    location, client = f"{s3_uri}/runs", s3._get_client()
    bucket, _ = s3.split_s3_uri(s3_uri)

    def forbid_missing(request: Any, **_: Any) -> AWSResponse | None:
        stored = boto3.resource("s3").Bucket(bucket).objects.all()
        if any(request.url.endswith(item.key) for item in stored):
            return None
        return AWSResponse(request.url, 403, {}, MockRawResponse(b""))

    check_writable(location)
    client.meta.events.register("before-send.s3.HeadObject", forbid_missing)
    try:
        with pytest.raises(OSError, match=rf"{location}/try-.*403.*Forbidden"):
            check_writable(location)
    finally:
        client.meta.events.unregister("before-send.s3.HeadObject", forbid_missing)
    assert s3.list_s3_objects(location) == [], "the test object is gone"


def test_checking_a_location_leaves_it_unchanged(s3_uri: str, tmp_path: Path) -> None:
    location = f"{s3_uri}/runs"
    save_checkpoint(location, "t", {"epoch": 1})
    check_writable(location)
    assert [stored.name for stored in s3.list_s3_objects(location)] == ["t.pt"]
    with pytest.raises(OSError, match="NoSuchBucket"):
        check_writable("s3://nobody-has-this/x")
    check_writable(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        check_writable(tmp_path / "file")
