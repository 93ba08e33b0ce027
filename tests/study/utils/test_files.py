"""Safe file names and owner-only files."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.utils.files import safe_filename, write_owner_only

pytestmark = pytest.mark.split


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", ".hidden", "x" * 300 + "é"])
def test_user_names_stay_inside_the_folder(name: str) -> None:
    safe = safe_filename(f"curves-{name}")
    assert "/" not in safe
    assert len(safe) < 150
    assert not safe_filename(name).startswith(".")


def test_plain_names_are_kept_and_changed_ones_stay_distinct() -> None:
    assert safe_filename("proxy_anchor-0017.txt") == "proxy_anchor-0017.txt"
    assert safe_filename("pml:A") != safe_filename("pml/A")


def test_a_file_with_a_password_replaces_a_public_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_owner_only(path, "old", None)
    assert path.stat().st_mode & 0o777 != 0o600
    write_owner_only(path, "new", "postgresql://ada:s3cret@db/x")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text("utf-8") == "new"
