"""Recording of the learning curves of a grid of points on real features, for bench_search.

python -m tests.benchmarks.record_trials DIRECTORY_WITH_cub200_lite0.npz [--seeds]

Writes recorded_trials.csv, with a row per point and its validation MAP@R after each epoch, and
recorded_seeds.csv, with the final scores of the best point for other seeds. With `--seeds` it
writes only the latter, from the existing table. The protocol is that of a study: classes of the
training half, a quarter of them held out for validation.
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


def train_point(point: tuple[float, ...], seed: int = 0) -> list[float]:
    """Train one point and return its learning curve, which is shorter if training diverged."""
    from study.config.loader import parse_config
    from study.config.planner import build_plan
    from study.trials.job import Job
    from study.utils.paths import cache_dir
    from trainables.training.context import open_context
    from trainables.training.errors import DivergedError
    from trainables.training.trial_trainer import TrialTrainer

    plan = build_plan(
        parse_config(
            {
                "name": "recorded",
                "data": {"name": "arrays", "path": os.environ["RECORDED_DATA"]},
                "losses": ["proxy_anchor"],
                "training": {"epochs": EPOCHS, "batch_size": 180, "embedding_dim": 64},
            }
        )
    )
    job = Job("t", "proxy_anchor", 0, "sobol", dict(zip(LEVELS, point, strict=True)), seed=seed)
    spec = plan.build_trial_spec(job, cache_dir=cache_dir(), checkpoint_dir="")
    context = open_context(spec.dataset, spec.backbone, cache_dir=cache_dir())
    training = TrialTrainer(spec, context)
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
        repeats = [(tuple(best[: len(LEVELS)]), seed) for seed in range(1, SEEDS + 1)]
        _write_csv(
            SEEDS_TABLE, ["score"], [[scores[-1]] for scores in pool.starmap(train_point, repeats)]
        )


def _record_points(pool: Pool) -> None:
    points = list(itertools.product(*LEVELS.values()))
    rows: list[list[Any]] = []
    for point, scores in zip(points, pool.imap(train_point, points, chunksize=4), strict=True):
        rows.append([*point, *scores])
        print(f"{len(rows)}/{len(points)}", end="\r", flush=True)
    _write_csv(TABLE, [*LEVELS, *(f"epoch_{e}" for e in range(1, EPOCHS + 1))], rows)


def _write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
