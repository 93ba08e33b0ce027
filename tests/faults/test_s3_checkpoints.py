"""A study whose checkpoints are on S3: a server of our own on loopback stands in for it."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from study.home import StudyHome
from study.plan import load_plan
from tests.study.driven import check_complete, launch, wait_for, workers_of, write_study

pytestmark = pytest.mark.ray


def test_trials_go_on_from_s3(
    tmp_path: Path, data_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    try:
        host, port = moto.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        bucket = boto3.resource("s3").create_bucket(Bucket="shared")
        path = write_study(
            tmp_path,
            losses=["triplet"],
            search={"trials": 5, "repeats": 1, "stop_early": False},
            storage={"checkpoints": "s3://shared/runs"},
        )
        home = StudyHome(tmp_path / "studies" / "s")
        process = launch(tmp_path / "studies", "run", str(path), "--no-report")
        wait_for(home, 1, process)
        for worker in workers_of(process):
            worker.kill()
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
        trials = check_complete(home)
        assert set(trials["state"]) == {"finished"}
        best = trials.sort_values("score")["trial"].iloc[-1]
        own = home.checkpoint_place(load_plan(home.directory)).removeprefix("s3://shared/")
        assert [stored.key for stored in bucket.objects.all()] == [f"{own}/{best}.pt"]
        assert not home.checkpoints.exists()
    finally:
        moto.stop()
