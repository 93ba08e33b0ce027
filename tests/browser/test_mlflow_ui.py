"""Is a finished study pleasant to look at in MLflow's own UI, in a real browser?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from mlflow import MlflowClient
from PIL import Image

from search_spaces import get_space
from search_spaces.scale import from_unit, to_unit
from search_spaces.space import Space, Value
from study.report.build import write_report
from study.tracking.local import default_artifact_root, default_uri
from study.tracking.reader import read_table
from study.tracking.records import TrialRecord
from study.tracking.server import serve
from study.tracking.writer import Tracker

pytestmark = pytest.mark.browser

EPOCHS = 6
TRIALS = 20
# MLflow asks for the user even where there is no authentication, and resizes while it is resized.
NOT_OURS = ("/users/current", "ResizeObserver loop")
# Charts are drawn when they come into view.
SCROLL = (
    "[...document.querySelectorAll('span, div')].reverse()"
    ".find(e => e.textContent.trim().startsWith('Model metrics'))?.scrollIntoView()"
)


@dataclass(frozen=True)
class Shown:
    """A study served by MLflow's UI."""

    address: str
    experiment: str
    runs: dict[str, str]

    def page(self, path: str, **query: str) -> str:
        words = {"workflowType": "machine_learning", **query}
        tail = "&".join(f"{key}={quote(value)}" for key, value in words.items())
        return f"{self.address}/#/experiments/{self.experiment}/runs{path}?{tail}"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    folder = tmp_path_factory.mktemp("ui") / "groceries"
    folder.mkdir()
    uri, root = default_uri(folder), default_artifact_root(folder)
    spool = folder / "spool"
    with Tracker(uri, spool=spool, artifact_root=root, experiment="groceries") as tracker:
        _tell(tracker)
        assert tracker.flush(120.0)
        paths = write_report(read_table(uri, "groceries"), folder / "report", formats=("png",))
        tracker.artifact(paths.index, to="study", folder="report")
        tracker.artifact(folder / "report" / "figures", to="circle", folder="figures")
        tracker.end_study(state="FINISHED")
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("groceries").experiment_id
    found = client.search_runs([experiment], max_results=500)
    runs = {run.info.run_name: run.info.run_id for run in found}
    with serve(uri, artifact_root=root) as address:
        yield Shown(address, experiment, runs)


def _tell(tracker: Tracker) -> None:
    """Two losses with the project's real spaces and plausible curves."""
    spaces = {loss: get_space(loss) for loss in ("proxy_anchor", "circle")}
    protocol = {"objective": "map_at_r", "epochs": EPOCHS, "folds": 2, "dataset": "grocery81"}
    plan = {
        "protocol": {**protocol, "backbone": "efficientnet_lite0", "tolerance": None},
        "spaces": {loss: space.to_dict() for loss, space in spaces.items()},
        "dataset": {"name": "grocery81", "fingerprint": "0123abcd", "images": 2640, "classes": 81},
    }
    note = "Study **groceries**: proxy_anchor and circle on grocery81, finished."
    tracker.open_study(name="groceries", plan=plan, losses=list(spaces), note=note)
    tracker.baseline("validation", {"map_at_r": 0.21, "recall_at_1": 0.5})
    generator = np.random.default_rng(4)
    for loss, space in spaces.items():
        for number in range(TRIALS):
            _trial(tracker, loss, number, space, generator)


def _trial(
    tracker: Tracker, loss: str, number: int, space: Space, generator: np.random.Generator
) -> None:
    repeated = not 0 < number < TRIALS - 2
    knobs: dict[str, Value] = dict(space.published[0].values)
    if not repeated:
        searched = space.searched.items()
        knobs = {name: from_unit(knob.distribution, generator.random()) for name, knob in searched}
    name, knob = next(iter(space.scientific.items()))
    best = 0.5 - 0.4 * (to_unit(knob.distribution, [knobs[name]])[0] - 0.6) ** 2
    origin = "published" if number == 0 else "repeat" if repeated else "sobol"
    fields: dict[str, Any] = {"anchor": "", "swept": "", "split": "validation", "knobs": knobs}
    began, trial = 1.8e9 + 60 * number, f"{loss}-{number:04d}"
    point = "p0" if repeated else f"p{number}"
    tracker.trial_started(
        TrialRecord(trial, loss, number, origin, number, point=point, started=began, **fields)
    )
    done = EPOCHS if repeated or number % 6 else 2
    for epoch in range(1, done + 1):
        rise = 1 - math.exp(-epoch / 2)
        score = best * rise + 0.005 * generator.normal()
        values = {"map_at_r": score, "recall_at_1": 0.5 + 0.3 * rise, "loss": 4 / epoch}
        values |= {"seconds": 1.2, "images_per_second": 900.0 + number}
        tracker.epoch(trial, epoch, values, timestamp=began + 2 * epoch)
    state: Any = "finished" if done == EPOCHS else "stopped"
    tracker.trial_ended(trial, state=state, host="node-1", timestamp=began + 20)


def _tidy(browser: Any) -> None:
    """Close MLflow's assistant, which a fresh browser opens over a third of the page."""
    close = "[...document.querySelectorAll('button')].find(b => /close/i.test(b.ariaLabel || ''))"
    if browser.evaluate(f"!!({close})"):
        browser.evaluate(f"({close}).click()")


def _clean(browser: Any) -> None:
    assert [e for e in browser.errors if not any(words in e for words in NOT_OURS)] == []


def _colours(path: Path) -> int:
    """How many colours a picture has: an empty page has few."""
    return len(Image.open(path).convert("RGB").getcolors(1 << 24) or [])


def test_the_tree_opens_to_losses_and_trials(browser: Any, shown: Shown) -> None:
    browser.open(shown.page(""))
    browser.see("groceries", f"{len(shown.runs)} matching runs", "grocery81 (0123abcd)")
    _tidy(browser)
    _expand(browser, "groceries", "circle")
    browser.see("untrained backbone", "circle-0000 γ=256 m=0.25")
    assert _colours(browser.shot("mlflow-tree")) > 100
    _clean(browser)


def _expand(browser: Any, *names: str) -> None:
    for name in names:
        link = f"[...document.querySelectorAll('[role=row] a')].find(a => a.innerText === '{name}')"
        expand = f"({link}).closest('[role=gridcell]').querySelector('svg')"
        browser.wait(f"!!({link}) && !!{expand}")
        browser.click(expand)
        browser.see("proxy_anchor")


def test_a_loss_has_charts(browser: Any, shown: Shown) -> None:
    browser.open(shown.page("", compareRunsMode="CHART"))
    browser.see("best/circle", "best/proxy_anchor")  # on the study itself
    _tidy(browser)
    _expand(browser, "groceries", "circle")
    browser.wait(f"{SCROLL}, document.body.innerText.includes('images_per_second')")
    browser.wait(
        "document.querySelectorAll('.js-plotly-plot .trace, .js-plotly-plot path').length > 30"
    )
    browser.shot("mlflow-charts")
    browser.open(shown.page(f"/{shown.runs['circle']}/model-metrics"))
    browser.see("map_at_r")
    browser.wait("document.querySelectorAll('.js-plotly-plot .scatterlayer path').length > 0")
    browser.shot("mlflow-loss-best")
    browser.open(shown.page(f"/{shown.runs['circle']}"))
    browser.see("Sun et al.", "scientific", "γ", "circle-0015", "Finished")
    browser.shot("mlflow-loss")
    _clean(browser)


def test_the_parent_run_tells_what_the_study_is(browser: Any, shown: Shown) -> None:
    browser.open(shown.page(f"/{shown.runs['groceries']}"))
    browser.see("proxy_anchor and circle on grocery81, finished.", "efficientnet_lite0")
    browser.see("grocery81 (0123abcd)", "untrained backbone")
    browser.shot("mlflow-study")
    _clean(browser)


def test_the_report_shows_in_the_artifact_viewer_with_its_plots(browser: Any, shown: Shown) -> None:
    browser.open(shown.page(f"/{shown.runs['groceries']}/artifacts/report/index.html"))
    browser.see("report/index.html")
    _tidy(browser)
    frame = browser.wait("!!document.querySelector('iframe')")
    assert frame
    size = "(r => r.width * r.height)(document.querySelector('iframe').getBoundingClientRect())"
    browser.wait(f"{size} > 200000")
    text = _inside(browser)
    assert "Leaderboard" in text
    shot = browser.shot("mlflow-report")
    assert _colours(shot) > 200
    _clean(browser)


def _inside(browser: Any) -> str:
    """The text of the sandboxed report, with the number of its drawn plots checked."""
    import time

    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        for context in list(browser.contexts.values()):
            script = (
                "[document.body.innerText, document.querySelectorAll('svg path, canvas').length]"
            )
            value = browser.evaluate(script, context=context)
            if value and "Leaderboard" in value[0] and value[1] > 20:
                return str(value[0])
        browser.evaluate("1")
        time.sleep(0.3)
    raise AssertionError(f"the report is not drawn: {browser.contexts}")
