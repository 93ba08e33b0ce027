"""Is a finished study pleasant to look at in MLflow's own UI, in a real browser?

The study is the small one that the tests run, or any other that was searched, confirmed and swept
along alpha. The README shows tree and charts of the quickstart, in 128 colours:

    study sweep quickstart --knob alpha --loss proxy_anchor && study confirm quickstart
    export DML_STUDY_SHOWN=studies/quickstart DML_STUDY_SCREENSHOTS=shots
    python -m pytest tests/browser/test_mlflow_ui.py
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from PIL import Image

from study.home import StudyHome
from study.plan import load_plan
from tests.study.driven import launch

pytestmark = [pytest.mark.browser, pytest.mark.ray]

ROOT = Path(__file__).resolve().parents[2]
# MLflow asks for the user even where there is no authentication, and resizes while it is resized.
NOT_OURS = re.compile(
    r"Failed to load resource: .* 404 .*/ajax-api/2\.0/mlflow/users/current"
    r"|.*ResizeObserver loop .*"
)
WIDER = 240.0
"""Pixels that the column of names is drawn wider, so that whole names show."""
_ALL = "[...document.querySelectorAll"
# Charts are drawn when they come into view.
SCROLL = (
    "[...document.querySelectorAll('span, div')].reverse()"
    ".find(e => e.textContent.trim().startsWith('Model metrics'))?.scrollIntoView()"
)


@dataclass(frozen=True)
class Shown:
    """A study served by MLflow's UI."""

    home: StudyHome
    address: str
    experiment: str
    runs: dict[str, Run]

    @property
    def name(self) -> str:
        return self.home.name

    @property
    def loss(self) -> str:
        """The loss that is looked at."""
        return load_plan(self.home.directory).losses[0]

    def trial(self, number: int) -> str:
        """The whole name of a trial's run."""
        return next(name for name in self.runs if name.startswith(f"{self.loss}-{number:03d} "))

    @property
    def search(self) -> str:
        """MLflow's words for that loss's trials of the search."""
        trials = "tags.split = 'validation' and tags.origin != 'sweep'"
        return f"tags.loss = '{self.loss}' and {trials}"

    @property
    def drawn(self) -> int:
        """How many of them have a curve, of the 20 runs drawn (one is the loss itself)."""
        tags = [run.data.tags for run in self.runs.values() if "map_at_r" in run.data.metrics]
        validated = [
            t for t in tags if (t.get("loss"), t.get("split")) == (self.loss, "validation")
        ]
        return min(19, len([t for t in validated if t["origin"] != "sweep"]))

    @property
    def data(self) -> str:
        found = self.runs[self.name].inputs.dataset_inputs[0].dataset
        return f"{found.name} ({found.digest})"

    def page(self, path: str, **query: str) -> str:
        words = {"workflowType": "machine_learning", **query}
        tail = "&".join(f"{key}={quote(value)}" for key, value in words.items())
        return f"{self.address}/#/experiments/{self.experiment}/runs{path}?{tail}"

    def run_page(self, run: str, path: str = "") -> str:
        return self.page(f"/{self.runs[run].info.run_id}{path}")


@pytest.fixture(scope="module")
def shown(request: pytest.FixtureRequest) -> Iterator[Shown]:
    """The session's real study, or the finished one in the folder DML_STUDY_SHOWN."""
    folder = os.environ.get("DML_STUDY_SHOWN")
    home: StudyHome
    home = StudyHome(Path(folder).absolute()) if folder else request.getfixturevalue("real_study")
    plan = load_plan(home.directory)
    uri = home.tracking_uri(plan)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(plan.name).experiment_id
    found = client.search_runs([experiment], max_results=500)
    runs = {run.info.run_name: run for run in found}
    with _study_ui(home) as address:
        yield Shown(home, address, experiment, runs)


@contextlib.contextmanager
def _study_ui(home: StudyHome) -> Iterator[str]:
    """The address that `study ui` says; it must end well, and alone, when it is interrupted."""
    process = launch(home.directory.parent, "ui", home.name)
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "http://127.0.0.1:" in line:
            break
    assert process.poll() is None, lines
    family = psutil.Process(process.pid).children(recursive=True)
    try:
        yield lines[-1].split()[1].split("/#/")[0]
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "stopped\n")
    assert family
    assert not [child for child in family if child.is_running()]


def _tidy(browser: Any) -> None:
    """Close MLflow's assistant, which a fresh browser opens over a third of the page."""
    close = "[...document.querySelectorAll('button')].find(b => /close/i.test(b.ariaLabel || ''))"
    if browser.evaluate(f"!!({close})"):
        browser.evaluate(f"({close}).click()")


def _clean(browser: Any) -> None:
    assert [error for error in browser.errors if not NOT_OURS.fullmatch(error)] == []


def _colours(path: Path) -> int:
    """How many colours a picture has: an empty page has few."""
    return len(Image.open(path).convert("RGB").getcolors(1 << 24) or [])


def test_the_tree_opens_to_losses_and_trials(browser: Any, shown: Shown) -> None:
    browser.open(shown.page(""), width=1180, height=960)
    browser.see(shown.name, f"{len(shown.runs)} matching runs", shown.data)
    _tidy(browser)
    _choose_columns(browser, "Dataset", "Source", "Models", "map_at_r", "recall_at_1")
    _expand(browser, shown.name, shown.loss)
    head = "[...document.querySelectorAll('.ag-header-cell')].find(h => /^Run N/.test(h.innerText))"
    x, y, _, height = browser.box(f"({head}).querySelector('.ag-header-cell-resize')")
    browser.drag(x + 2, y + height / 2, WIDER)
    browser.see("untrained backbone", shown.trial(0), f"{shown.loss} confirm")
    browser.see(f"{shown.loss} sweep alpha around published")
    _whole_names(browser)
    left, top, width, _ = _right_of_the_menu(browser)
    ends = f"{_ALL}('.ag-row')].map(r => r.getBoundingClientRect().bottom)"
    height = browser.evaluate(f"Math.min(innerHeight - 70, Math.max(...{ends}) + 10)")
    assert _colours(browser.shot("mlflow-tree", part=(left, top, width, height))) > 100
    _clean(browser)


def _choose_columns(browser: Any, *names: str) -> None:
    """Take columns into MLflow's table, or out of it."""
    browser.click(_button("Columns"))
    for name in names:
        node = f"{_ALL}('.du-bois-light-tree-treenode')].find(e => e.innerText.trim() === '{name}')"
        browser.wait(f"!!({node})")
        browser.evaluate(f"({node}).scrollIntoView({{block: 'center'}})")
        browser.click(f"({node}).querySelector('.du-bois-light-tree-checkbox')")
    for kind in ("keyDown", "keyUp"):
        key = {"key": "Escape", "code": "Escape", "windowsVirtualKeyCode": 27}
        browser.send("Input.dispatchKeyEvent", type=kind, **key)
    browser.wait(f"!{_ALL}('.du-bois-light-tree-treenode')].some(e => e.offsetParent)")


def _button(text: str) -> str:
    return f"{_ALL}('button')].find(b => b.innerText.trim() === '{text}')"


def _whole_names(browser: Any) -> None:
    """No run's name is cut."""
    cut = "getComputedStyle(e).textOverflow === 'ellipsis' && e.scrollWidth > e.clientWidth"
    browser.wait(f"!{_ALL}('[role=gridcell]:has(a) *')].some(e => {cut})")


def _right_of_the_menu(browser: Any) -> tuple[float, float, float, float]:
    """The page without the menu on its left."""
    width, height = browser.evaluate("[innerWidth, innerHeight]")
    return 200.0, 0.0, width - 200.0, height


def _link(name: str) -> str:
    return f"[...document.querySelectorAll('[role=row] a')].find(a => a.innerText === '{name}')"


def _expand(browser: Any, *names: str) -> None:
    for name in names:
        link = _link(name)
        expand = f"({link}).closest('[role=gridcell]').querySelector('svg')"
        browser.wait(f"!!({link}) && !!{expand}")
        browser.click(expand)


def test_a_loss_has_charts(browser: Any, shown: Shown) -> None:
    browser.open(shown.page("", compareRunsMode="CHART"), height=1080)
    browser.see(f"best/{shown.loss}")  # on the study itself
    _tidy(browser)
    # MLflow draws the first ten runs; those that others hang on would be most of them.
    browser.open(shown.page("", compareRunsMode="CHART", searchFilter=shown.search), height=1080)
    _expand(browser, shown.loss)
    browser.see(shown.trial(0))
    browser.click("document.querySelector('[aria-label=\"Toggle visibility of runs\"]')")
    twenty = f"{_ALL}('[role=menuitemradio]')].find(e => e.innerText.includes('Show first 20'))"
    browser.wait(f"!!({twenty})")
    browser.click(twenty)
    tall = "getComputedStyle(e).cursor === 'ew-resize' && e.clientHeight > 300"
    x, y, width, _ = browser.box(f"{_ALL}('div')].find(e => {tall})")
    browser.drag(x + width / 2, y + 60, WIDER)
    _whole_names(browser)
    browser.wait(f"{SCROLL}, document.body.innerText.includes('images_per_second')")
    lines = f"{_ALL}('.js-plotly-plot')].map(p => p.querySelectorAll('.trace').length)"
    browser.wait(f"{lines}.filter(n => n >= {shown.drawn}).length >= 6")
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)  # off what it lights up
    left, top, width, height = _right_of_the_menu(browser)
    browser.shot("mlflow-charts", part=(left, top, width, height - 130))
    browser.open(shown.run_page(shown.loss, "/model-metrics"))
    browser.see("map_at_r")
    browser.wait("document.querySelectorAll('.js-plotly-plot .scatterlayer path').length > 0")
    browser.shot("mlflow-loss-best")
    browser.open(shown.run_page(shown.loss))
    browser.see("scientific", "α", f"{shown.loss} confirm", "Finished")
    browser.shot("mlflow-loss")
    _clean(browser)


def test_a_trial_has_settings_with_units_and_its_machine_apart(browser: Any, shown: Shown) -> None:
    trial = shown.trial(0)
    browser.open(shown.run_page(trial))
    browser.see("batch_size in images", "recall_at_1", "code_version", "published")
    _tidy(browser)
    browser.shot("mlflow-trial")
    browser.open(shown.run_page(trial, "/model-metrics"))
    browser.see("map_at_r", "lr_head")
    assert "memory_mib" not in browser.evaluate("document.body.innerText")
    browser.open(shown.run_page(trial, "/system-metrics"))
    browser.see("memory_mib", "node_memory_percent")
    browser.shot("mlflow-system")
    _clean(browser)


def test_the_parent_run_tells_what_the_study_is(browser: Any, shown: Shown) -> None:
    browser.open(shown.run_page(shown.name))
    browser.see("objective map_at_r on validation classes", "conv4", "trials ended")
    browser.see(shown.data, "untrained backbone")
    browser.shot("mlflow-study")
    _clean(browser)


def test_the_report_shows_in_the_artifact_viewer_with_its_plots(browser: Any, shown: Shown) -> None:
    browser.open(shown.run_page(shown.name, "/artifacts/report/index.html"), height=1250)
    browser.see("report/index.html")
    _tidy(browser)
    frame = browser.wait("!!document.querySelector('iframe')")
    assert frame
    size = "(r => r.width * r.height)(document.querySelector('iframe').getBoundingClientRect())"
    browser.wait(f"{size} > 200000")
    text = _inside(browser)
    assert "Leaderboard" in text
    _, top, _, height = browser.box("document.querySelector('iframe')")
    left, _, width, _ = _right_of_the_menu(browser)  # and below the viewer's head: it says a path
    shot = browser.shot("mlflow-report", part=(left, top, width, height - 80))
    assert _colours(shot) > 200
    _clean(browser)


def _inside(browser: Any) -> str:
    """The text of the sandboxed report, with the number of its drawn plots checked."""
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        for context in list(browser.contexts.values()):
            marks = "document.querySelectorAll('.plot[data-drawn] svg path').length"
            value = browser.evaluate(f"[document.body.innerText, {marks}]", context=context)
            if value and "Leaderboard" in value[0] and value[1] > 20:
                return str(value[0])
        browser.evaluate("1")
        time.sleep(0.3)
    raise AssertionError(f"the report is not drawn: {browser.contexts}")


def test_plots_and_galleries_hang_where_they_belong(shown: Shown) -> None:
    client = MlflowClient(shown.address)
    on_loss = {f.path for f in client.list_artifacts(shown.runs[shown.loss].info.run_id, "figures")}
    assert any("response" in path for path in on_loss)
    assert all(
        path.removesuffix(".png").removesuffix(".svg").endswith(shown.loss) for path in on_loss
    )
    galleries = [
        name
        for name, run in shown.runs.items()
        if run.data.tags.get("dml.kind") == "trial"
        and any(f.path == f"{shown.loss}.png" for f in client.list_artifacts(run.info.run_id))
    ]
    best = max(
        (run for run in shown.runs.values() if _is_searched(run, shown.loss)),
        key=lambda run: run.data.metrics["map_at_r"],
    )
    assert galleries == [best.info.run_name]


def _is_searched(run: Run, loss: str) -> bool:
    tags = run.data.tags
    wanted = tags.get("origin") in ("published", "sobol", "bayes")
    return wanted and tags.get("loss") == loss and tags.get("state") == "finished"


def test_a_report_from_afar_has_the_same_bytes(shown: Shown, tmp_path: Path) -> None:
    """Through the server, in a folder that knows nothing of the study."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "study", "report", shown.name),
            *("--tracking-uri", shown.address, "--out", "afar"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DML_STUDY_HOME": str(tmp_path / "none")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tables = [
        path.relative_to(shown.home.report)
        for path in sorted(shown.home.report.rglob("*"))
        if path.suffix in (".csv", ".tex", ".json", ".html")
    ]
    assert len(tables) > 10
    for table in tables:
        here, there = shown.home.report / table, tmp_path / "afar" / table
        assert here.read_bytes() == there.read_bytes(), table
