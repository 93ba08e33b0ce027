"""Test of a study whose checkpoints are on S3, with a local server."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from study.config.plan import load_plan
from study.directory import StudyDirectory
from tests.support.running_studies import (
    check_complete,
    find_trial_processes,
    launch_command,
    wait_for_ended_trials,
    write_study,
)

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.xdist_group("hosts")]


def test_trials_continue_from_s3(
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
        study_dir = StudyDirectory(tmp_path / "studies" / "s")
        process = launch_command(tmp_path / "studies", "run", str(path), "--no-report")
        wait_for_ended_trials(study_dir, 1, process)
        for worker in find_trial_processes(process):
            worker.kill()
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
        trials = check_complete(study_dir)
        assert set(trials["state"]) == {"finished"}
        best = trials.sort_values("score")["trial"].iloc[-1]
        own = study_dir.checkpoint_location(load_plan(study_dir.path)).removeprefix("s3://shared/")
        assert [stored.key for stored in bucket.objects.all()] == [f"{own}/{best}.pt"]
        assert not study_dir.checkpoints_dir.exists()
    finally:
        moto.stop()
