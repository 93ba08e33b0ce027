"""Download of data from S3: once per node, resumed, and shared by its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.s3_objects import put_object
from trainables.data.readers.array_files import holds_features
from trainables.data.registry import load_dataset
from trainables.data.s3_download import download_once
from trainables.utils import s3


def test_a_prefix_is_downloaded_once(s3_uri: str, tmp_path: Path) -> None:
    names = [f"train/c{c}/{i}.txt" for c in range(3) for i in range(4)]
    for name in names:
        put_object(f"{s3_uri}/cub/{name}", name.encode())
    put_object(f"{s3_uri}/cub2/other.txt", b"not below cub")
    folder = download_once(f"{s3_uri}/cub", cache_dir=tmp_path)
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert files == sorted(names)
    assert all((folder / name).read_text() == name for name in names)
    stamp = (folder / names[0]).stat().st_mtime_ns
    assert download_once(f"{s3_uri}/cub/", cache_dir=tmp_path / "b") != folder
    assert download_once(f"{s3_uri}/cub", cache_dir=tmp_path) == folder
    assert (folder / names[0]).stat().st_mtime_ns == stamp
    assert not list(tmp_path.glob("*.partial"))


def test_lost_files_are_downloaded_again_and_changed_objects_make_another_copy(
    s3_uri: str, tmp_path: Path
) -> None:
    uri = f"{s3_uri}/d"
    put_object(f"{uri}/a", b"one")
    put_object(f"{uri}/b", b"two")
    folder = download_once(uri, cache_dir=tmp_path)
    (folder / "a").unlink()
    assert download_once(uri, cache_dir=tmp_path) == folder
    assert (folder / "a").read_bytes() == b"one"
    put_object(f"{uri}/a", b"eno")
    changed = download_once(uri, cache_dir=tmp_path)
    assert changed != folder
    assert (changed / "a").read_bytes() == b"eno"


def test_an_interrupted_download_is_continued(s3_uri: str, tmp_path: Path) -> None:
    uri = f"{s3_uri}/d"
    for name in "abc":
        put_object(f"{uri}/{name}", name.encode() * 10)
    complete = download_once(uri, cache_dir=tmp_path)
    partial = complete.with_name(complete.name + ".partial")
    complete.rename(partial)
    # A file of the right size is kept, which shows that it is not downloaded again.
    (partial / "a").write_bytes(b"X" * 10)
    (partial / "b").write_bytes(b"half")
    (partial / "c").unlink()
    assert download_once(uri, cache_dir=tmp_path) == complete
    contents = [(complete / name).read_bytes() for name in "abc"]
    assert contents == [b"X" * 10, b"b" * 10, b"c" * 10]


@pytest.mark.slow
def test_processes_of_a_node_share_one_copy(s3_uri: str, tmp_path: Path) -> None:
    for i in range(40):
        put_object(f"{s3_uri}/many/{i}", os.urandom(2000))
    code = (
        "import sys; from pathlib import Path\n"
        "from trainables.data.s3_download import download_once\n"
        "calls = []\n"
        "uri, cache_dir = sys.argv[1], Path(sys.argv[2])\n"
        "download_once(uri, cache_dir=cache_dir, progress=lambda *a: calls.append(a))\n"
        "print(sum(not 'another' in a[0] for a in calls))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, f"{s3_uri}/many", str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[3],
        )
        for _ in range(2)
    ]
    counts = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert sorted(counts) == [0, 40]


def test_names_cannot_leave_the_directory(s3_uri: str, tmp_path: Path) -> None:
    put_object(f"{s3_uri}/bad/x/../../../escaped", b"x")
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        download_once(f"{s3_uri}/bad", cache_dir=tmp_path)
    with pytest.raises(ValueError, match="nothing is stored"):
        download_once(f"{s3_uri}/none", cache_dir=tmp_path)


def test_a_data_set_can_be_one_object_on_s3(s3_uri: str, tmp_path: Path) -> None:
    labels = np.repeat(np.arange(8), 4)
    features = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
    np.savez(tmp_path / "f.npz", features=features, labels=labels)
    put_object(f"{s3_uri}/sets/f.npz", (tmp_path / "f.npz").read_bytes())
    local = load_dataset("arrays", cache_dir=tmp_path / "a", path=str(tmp_path / "f.npz"))
    remote = load_dataset("arrays", cache_dir=tmp_path / "b", path=f"{s3_uri}/sets/f.npz")
    assert remote.fingerprint == local.fingerprint
    assert np.array_equal(remote.train.items, local.train.items)


def test_features_on_s3_are_recognised_without_downloading_them(
    s3_uri: str, tmp_path: Path
) -> None:
    """A few kilobytes of the file are sufficient, whatever its size."""
    features, images = np.ones((300, 700), np.float32), np.ones((300, 700, 3), np.uint8)
    np.savez(tmp_path / "f.npz", features=features, labels=np.arange(300))
    np.savez(tmp_path / "i.npz", images=images, labels=np.arange(300))
    np.save(tmp_path / "f.npy", features)
    np.save(tmp_path / "i.npy", images)
    for path in tmp_path.iterdir():
        put_object(f"{s3_uri}/sets/{path.name}", path.read_bytes())
        assert holds_features(f"{s3_uri}/sets/{path.name}") == (path.stem == "f"), path.name
        assert holds_features(str(path)) == (path.stem == "f"), path.name
    assert not holds_features(f"{s3_uri}/sets/none.npz")
    with s3.open_s3_object(f"{s3_uri}/sets/f.npz") as file:
        assert file.read(2) == b"PK"
        raw = file.raw  # type: ignore[attr-defined]
        assert raw.tell() <= s3.READ_BUFFER_BYTES
