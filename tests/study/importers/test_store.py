"""The store of an imported study: accepted names, and nothing left after an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.cli.main import main
from study.errors import StudyError
from study.importers import store
from tests.support.imported_tables import (
    SPACE,
    ImportTrials,
    write_csv,
)


def test_names_that_the_store_refuses_are_errors_before_anything_is_written(
    tmp_path: Path, space_file: Path, import_trials: ImportTrials
) -> None:
    csv = write_csv(tmp_path, "a,b,mode,score,metric.p@1\n0.1,0.1,x,0.5,0.5\n")
    with pytest.raises(StudyError, match="metric 'p@1' contains '@'"):
        import_trials("--csv", csv, "--space", space_file)
    for name in ("map_at_r", "score_std", "test/x", "../x"):
        csv = write_csv(tmp_path, f"a,b,mode,score,metric.{name}\n0.1,0.1,x,0.5,0.5\n")
        with pytest.raises(StudyError, match=f"'{name}'"):
            import_trials("--csv", csv, "--space", space_file)
    csv = write_csv(tmp_path, "a,b,mode,score\n0.1,0.1,x,0.5\n")
    space_file.write_text(SPACE.replace("map_at_r", "recall@1"), "utf-8")
    with pytest.raises(StudyError, match="objective 'recall@1' contains '@'"):
        import_trials("--csv", csv, "--space", space_file)
    space_file.write_text(SPACE.replace("      b:", "      b(x):").replace("[b]", "[]")
                          .replace("b: 0.5", "b(x): 0.5"), "utf-8")  # fmt: skip
    csv = write_csv(tmp_path, "a,b(x),mode,score\n0.1,0.1,x,0.5\n")
    with pytest.raises(StudyError, match=r"hyperparameter 'b\(x\)' contains '\('"):
        import_trials("--csv", csv, "--space", space_file)
    assert not (tmp_path / "studies").exists()


@pytest.mark.slow
def test_an_import_that_the_store_refuses_fails_and_leaves_nothing(
    tmp_path: Path, space_file: Path, import_trials: ImportTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_check_names", lambda table: None)
    space_file.write_text(SPACE.replace("map_at_r", "recall@1"), "utf-8")
    csv = write_csv(tmp_path, "a,b,mode,score\n0.1,0.1,x,0.5\n0.1,0.2,x,0.5\n")
    with pytest.raises(StudyError, match=r"the store refused 2 records: .*recall@1"):
        import_trials("--csv", csv, "--space", space_file)
    assert not (tmp_path / "studies" / "s").exists()


@pytest.mark.parametrize("name", ["../elsewhere", "<script>alert(1)</script>", ""])
def test_an_invalid_study_name_is_an_error(
    tmp_path: Path, space_file: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    csv = write_csv(tmp_path, "a,b,mode,score\n0.1,0.1,x,1\n")
    root = tmp_path / "studies"
    with pytest.raises(SystemExit) as done:
        main(["import", name, "--root", str(root), "--csv", str(csv), "--space", str(space_file)])
    assert done.value.code == 2
    assert "letters, digits" in capsys.readouterr().err
    assert not root.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["space.yaml", "trials.csv"]
