"""Train every point of a grid on real features, once, for searches to be compared on.

python -m tests.benchmarks.record_trials DIRECTORY_WITH_cub200_lite0.npz [--seeds]

Writes recorded_trials.csv: a row per point with its validation MAP@R after each epoch; and
recorded_seeds.csv: the best point's final scores with other seeds (with `--seeds` only these, of
the table that is there). The protocol is a study's own: the training half's classes, a quarter of
them held out for validation.
"""

from __future__ import annotations

import csv
import itertools
import multiprocessing
import os
import sys
import tempfile
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent / "recorded_trials.csv"
SEEDS_TABLE = TABLE.with_name("recorded_seeds.csv")
EPOCHS = 9
SEEDS = 8
LEVELS: dict[str, tuple[float, ...]] = {
    "alpha": (4.0, 8.0, 32.0, 64.0, 128.0),
    "delta": (0.0, 0.1, 0.3, 0.6),
    "head_lr": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
    "proxy_lr": (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
}


def curve(point: tuple[float, ...], seed: int = 0) -> list[float]:
    """The learning curve of one point; shorter where training diverged."""
    from study.home import cache_dir
    from study.jobs import Job
    from study.planning import build_plan
    from study.read_file import parse_study
    from trainables.replica import DivergedError
    from trainables.training import Training
    from trainables.workbench import open_bench

    plan = build_plan(
        parse_study(
            {
                "name": "recorded",
                "data": {"name": "arrays", "path": os.environ["RECORDED_DATA"]},
                "losses": ["proxy_anchor"],
                "training": {"epochs": EPOCHS, "batch_size": 180, "embedding_dim": 64},
            }
        )
    )
    job = Job("t", "proxy_anchor", 0, "sobol", dict(zip(LEVELS, point, strict=True)), seed=seed)
    spec = plan.trial_spec(job, cache_dir=cache_dir(), checkpoint_dir="")
    bench = open_bench(spec.dataset, spec.backbone, cache_dir=cache_dir())
    training = Training(spec, bench)
    scores = []
    try:
        while not training.is_done:
            scores.append(round(float(training.run_epoch()["score"]), 6))
    except DivergedError:
        pass
    return scores


def main() -> None:
    """Train all points on all cores and write the tables."""
    os.environ["RECORDED_DATA"] = str(Path(sys.argv[1]) / "cub200_lite0.npz")
    os.environ.setdefault("DML_STUDY_CACHE", tempfile.mkdtemp())
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool() as pool:
        if "--seeds" not in sys.argv:
            _record_points(pool)
        with TABLE.open(encoding="utf-8", newline="") as file:
            rows = [[float(cell) for cell in row] for row in list(csv.reader(file))[1:]]
        best = max((r for r in rows if len(r) == len(LEVELS) + EPOCHS), key=lambda r: r[-1])
        again = [(tuple(best[: len(LEVELS)]), seed) for seed in range(1, SEEDS + 1)]
        _write(SEEDS_TABLE, ["score"], [[scores[-1]] for scores in pool.starmap(curve, again)])


def _record_points(pool: Pool) -> None:
    points = list(itertools.product(*LEVELS.values()))
    rows: list[list[Any]] = []
    for point, scores in zip(points, pool.imap(curve, points, chunksize=4), strict=True):
        rows.append([*point, *scores])
        print(f"{len(rows)}/{len(points)}", end="\r", flush=True)
    _write(TABLE, [*LEVELS, *(f"epoch_{e}" for e in range(1, EPOCHS + 1))], rows)


def _write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
