"""A trial as Ray Tune sees it: a class Trainable whose step is one epoch.

The actor is reused: the process, torch, the data and the backbone stay; only what the point
changes is rebuilt. Whatever goes wrong inside a trial is a result, not an exception: Tune's own
retries are left for processes that died.
"""

from __future__ import annotations

import contextlib
import os
import socket
import traceback
from pathlib import Path
from typing import Any

from ray.tune import Trainable

from trainables.replica import DivergedError
from trainables.settings import TrialSpec
from trainables.training import Training
from trainables.workbench import Bench, open_bench


class StudyTrial(Trainable):  # type: ignore[misc]
    """Trains what `config["spec"]` says, from its last checkpoint if there is one."""

    _bench: tuple[Any, Bench] | None = None
    _training: Training | None = None

    def setup(self, config: dict[str, Any]) -> None:
        """Nothing is built yet: building may fail, and a failure is a result of `step`."""
        self._start(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial into this process."""
        self._start(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """One epoch of all folds and seeds."""
        epoch = self._training.epoch if self._training else 0
        result: dict[str, Any] = {"epoch": epoch, "host": socket.gethostname(), "error": ""}
        try:
            result |= self._advance()
        except DivergedError as error:
            result |= {"state": "diverged", "error": str(error)}
        except Exception as error:
            self._keep_traceback()
            result |= {"state": "failed", "error": _last_line(error)}
        result["done"] = result["state"] != "running"
        return result

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Tune's own checkpoints are not used; see `trainables.checkpoints`."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Tune's own checkpoints are not used; see `trainables.checkpoints`."""

    def cleanup(self) -> None:
        """Drop what the process holds."""
        self._training = None
        self._bench = None

    def _start(self, config: dict[str, Any]) -> None:
        self._spec = TrialSpec.from_dict(config["spec"])
        self._training = None

    def _advance(self) -> dict[str, Any]:
        """The next epoch's report.

        A trial that continues first repeats the report of its checkpoint: the process may have
        died between writing the one and sending the other. Reports are counted once by epoch.
        """
        training = self._training
        if training is None:
            self._training = training = Training(self._spec, self._open_bench())
            again = training.restore()
        else:
            again = False
        if not again:
            training.run_epoch()
            if training.is_done or training.epoch % self._spec.checkpoint_every == 0:
                # Without a checkpoint a trial is only slower to continue: a full disk is no
                # reason to lose it.
                with contextlib.suppress(OSError):
                    training.save()
        state = "finished" if training.is_done else "running"
        return {**training.last_result, "state": state}

    def _open_bench(self) -> Bench:
        spec = self._spec
        key = (spec.dataset, spec.backbone, spec.cache_dir)
        if self._bench is None or self._bench[0] != key:
            self._bench = None  # free the old data before loading other data
            bench = open_bench(spec.dataset, spec.backbone, cache_dir=Path(spec.cache_dir))
            self._bench = (key, bench)
        return self._bench[1]

    def _keep_traceback(self) -> None:
        """Leave the whole traceback where `study status` can point to."""
        if self._spec.checkpoint_dir:
            folder = Path(self._spec.checkpoint_dir).parent / "errors"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                text = f"pid {os.getpid()} on {socket.gethostname()}\n{traceback.format_exc()}"
                (folder / f"{self._spec.trial}.txt").write_text(text, encoding="utf-8")
            except OSError:
                pass  # a full disk must not hide the error itself


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = lines[-1].strip() if lines else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
