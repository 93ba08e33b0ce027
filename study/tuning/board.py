"""What do the studies that share a cluster want of it?

Each leaves a note in the store of Ray's head, under its driver's job. A study whose driver is gone
wants nothing: Ray knows which jobs live.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

NAMESPACE = b"dml-study"
PREFIX = b"wish/"


@dataclass(frozen=True)
class Wish:
    """What a study can use at once.

    Args:
        bundle: What a trial takes of each of its nodes.
        nodes: How many nodes a trial spans.
        trials: How many.
    """

    bundle: Mapping[str, float]
    nodes: int
    trials: int


class ClusterBoard:
    """The notes of the cluster this process is connected to.

    Args:
        study: Whose.
    """

    def __init__(self, study: str) -> None:
        self._study = study

    def publish(self, wish: Wish | None) -> None:
        """Replace what this study wants; None: nothing more."""
        from ray.experimental import internal_kv as store

        key = PREFIX + _own_job().encode()
        if wish is None:
            store._internal_kv_del(key, namespace=NAMESPACE)
            return
        note = json.dumps({"study": self._study, **asdict(wish)}).encode()
        store._internal_kv_put(key, note, overwrite=True, namespace=NAMESPACE)

    def wishes(self) -> list[Wish]:
        """What the studies that live want, by job; notes of the others are removed."""
        from ray.experimental import internal_kv as store

        notes = self._notes()
        living = _living_jobs() if set(notes) - {_own_job()} else set(notes)
        for key in set(notes) - living:
            store._internal_kv_del(PREFIX + key.encode(), namespace=NAMESPACE)
        found = [notes[key] for key in sorted(living & set(notes))]
        return [Wish(note["bundle"], note["nodes"], note["trials"]) for note in found]

    def forget(self) -> None:
        """Remove this study's notes, whichever process left them."""
        from ray.experimental import internal_kv as store

        for key, note in self._notes().items():
            if note["study"] == self._study:
                store._internal_kv_del(PREFIX + key.encode(), namespace=NAMESPACE)

    def _notes(self) -> dict[str, dict[str, Any]]:
        from ray.experimental import internal_kv as store

        found = {}
        for key in store._internal_kv_list(PREFIX, namespace=NAMESPACE):
            note = store._internal_kv_get(key, namespace=NAMESPACE)
            if note:  # a study may have ended in between
                found[bytes(key).removeprefix(PREFIX).decode()] = json.loads(note)
        return found


def _own_job() -> str:
    import ray

    return str(ray.get_runtime_context().get_job_id())


def _living_jobs() -> set[str]:
    from ray._private.state import jobs

    return {job["JobID"] for job in jobs() if not job["IsDead"]}
