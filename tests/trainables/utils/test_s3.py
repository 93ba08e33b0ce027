"""S3 client against a local server: transfer, range reads, listing, deletion and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.s3_objects import put_object
from trainables.utils import s3


def test_uris_are_split_into_bucket_and_key() -> None:
    assert s3.split_s3_uri("s3://images/cub/train") == ("images", "cub/train")
    assert s3.split_s3_uri("s3://images") == ("images", "")
    with pytest.raises(ValueError, match="'s3:///key'"):
        s3.split_s3_uri("s3:///key")


def test_only_s3_uris_are_on_s3() -> None:
    assert s3.is_s3_uri("s3://images/cub")
    assert not s3.is_s3_uri("/data/cub")
    assert not s3.is_s3_uri(Path("s3/cub"))


def test_a_file_is_uploaded_downloaded_and_removed(s3_uri: str, tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(b"content" * 100)
    s3.upload_file(source, f"{s3_uri}/a/file")
    s3.download_file(f"{s3_uri}/a/file", copy)
    assert copy.read_bytes() == source.read_bytes()
    s3.remove_object(f"{s3_uri}/a/file")
    s3.remove_object(f"{s3_uri}/a/file")
    with pytest.raises(FileNotFoundError, match=f"{s3_uri}/a/file"):
        s3.download_file(f"{s3_uri}/a/file", copy)


def test_objects_below_a_prefix_are_listed_by_relative_name(
    s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "LIST_PAGE_SIZE", 2)
    for name in ("cub/b", "cub/a/1", "cub/a/2", "cub2/x", "cub/empty/"):
        put_object(f"{s3_uri}/{name}", name.encode())
    objects = s3.list_s3_objects(f"{s3_uri}/cub")
    assert [(item.name, item.size) for item in objects] == [("a/1", 7), ("a/2", 7), ("b", 5)]
    assert objects == s3.list_s3_objects(f"{s3_uri}/cub/")
    assert [item.name for item in s3.list_s3_objects(f"{s3_uri}/cub/b")] == [""]
    assert len(s3.list_s3_objects(s3_uri)) == 4
    assert s3.list_s3_objects(f"{s3_uri}/none") == []


def test_an_opened_object_is_read_by_ranges(s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 4
    put_object(f"{s3_uri}/file", content)
    monkeypatch.setattr(s3, "READ_BUFFER_BYTES", 64)
    with s3.open_s3_object(f"{s3_uri}/file") as file:
        assert file.read(2) == content[:2]
        file.seek(-10, 2)
        assert file.read() == content[-10:]
        assert file.read() == b""
        file.seek(500)
        assert (file.tell(), file.read(100)) == (500, content[500:600])
    with pytest.raises(FileNotFoundError, match="none"):
        s3.open_s3_object(f"{s3_uri}/none")


def test_errors_of_s3_are_os_errors_with_the_uri(s3_uri: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="s3://nobody-has-this/x"):
        s3.upload_file(tmp_path / "file", "s3://nobody-has-this/x")
    with pytest.raises(OSError, match="NoSuchBucket"):
        s3.list_s3_objects("s3://nobody-has-this/x")
