"""Tests of a finished study in MLflow's UI, in a real browser.

The study is the small one of the test suite, or any other that was searched, confirmed and swept
over alpha. docs/mlflow.md shows tree and charts of the quickstart, in 128 colours:

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

from study.config.plan import load_plan
from study.directory import StudyDirectory
from tests.support.running_studies import launch_command

pytestmark = [pytest.mark.browser, pytest.mark.ray, pytest.mark.xdist_group("ray")]

ROOT = Path(__file__).resolve().parents[2]
# MLflow requests the current user even without authentication, and resizes in a resize handler.
MLFLOW_ERRORS = re.compile(
    r"Failed to load resource: .* 404 .*/ajax-api/2\.0/mlflow/users/current"
    r"|.*ResizeObserver loop .*"
)
NAME_COLUMN_EXTRA_PIXELS = 240.0
"""How much the column of names is widened, so that complete names are shown."""
_ALL = "[...document.querySelectorAll"
# MLflow draws charts when they come into view.
SCROLL_TO_METRICS = (
    "[...document.querySelectorAll('span, div')].reverse()"
    ".find(e => e.textContent.trim().startsWith('Model metrics'))?.scrollIntoView()"
)


@dataclass(frozen=True)
class ServedStudy:
    """Study that MLflow's UI serves."""

    study_dir: StudyDirectory
    address: str
    experiment: str
    runs: dict[str, Run]

    @property
    def name(self) -> str:
        return self.study_dir.name

    @property
    def loss(self) -> str:
        """Loss whose runs the tests open."""
        return load_plan(self.study_dir.path).losses[0]

    def get_trial_name(self, number: int) -> str:
        """Return the complete name of a trial's run."""
        return next(name for name in self.runs if name.startswith(f"{self.loss}-{number:03d} "))

    @property
    def search_filter(self) -> str:
        """MLflow filter for the search trials of that loss."""
        trials = "tags.split = 'validation' and tags.origin != 'sweep'"
        return f"tags.loss = '{self.loss}' and {trials}"

    @property
    def n_curves(self) -> int:
        """Number of these trials with a curve among the first 20 runs, one of which is the loss."""
        tags = [run.data.tags for run in self.runs.values() if "map_at_r" in run.data.metrics]
        validated = [
            t for t in tags if (t.get("loss"), t.get("split")) == (self.loss, "validation")
        ]
        return min(19, len([t for t in validated if t["origin"] != "sweep"]))

    @property
    def dataset_label(self) -> str:
        dataset = self.runs[self.name].inputs.dataset_inputs[0].dataset
        return f"{dataset.name} ({dataset.digest})"

    def make_page_url(self, path: str, **query: str) -> str:
        options = {"workflowType": "machine_learning", **query}
        tail = "&".join(f"{key}={quote(value)}" for key, value in options.items())
        return f"{self.address}/#/experiments/{self.experiment}/runs{path}?{tail}"

    def make_run_url(self, run: str, path: str = "") -> str:
        return self.make_page_url(f"/{self.runs[run].info.run_id}{path}")


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[ServedStudy]:
    """Serve the session's real study or the finished one in the folder DML_STUDY_SHOWN."""
    folder = os.environ.get("DML_STUDY_SHOWN")
    study_dir: StudyDirectory
    study_dir = (
        StudyDirectory(Path(folder).absolute()) if folder else request.getfixturevalue("real_study")
    )
    plan = load_plan(study_dir.path)
    uri = study_dir.tracking_uri(plan)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(plan.name).experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment], max_results=500)}
    with _run_study_ui(study_dir) as address:
        yield ServedStudy(study_dir, address, experiment, runs)


@contextlib.contextmanager
def _run_study_ui(study_dir: StudyDirectory) -> Iterator[str]:
    """Yield the address that `study ui` prints; ctrl-C must stop it and all its processes."""
    process = launch_command(study_dir.path.parent, "ui", study_dir.name)
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "http://127.0.0.1:" in line:
            break
    assert process.poll() is None, lines
    children = psutil.Process(process.pid).children(recursive=True)
    try:
        yield lines[-1].split()[1].split("/#/")[0]
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "stopped\n")
    assert children
    assert not [child for child in children if child.is_running()]


def _close_assistant(browser: Any) -> None:
    """Close MLflow's assistant, which covers a third of the page in a fresh browser."""
    close = "[...document.querySelectorAll('button')].find(b => /close/i.test(b.ariaLabel || ''))"
    if browser.evaluate(f"!!({close})"):
        browser.evaluate(f"({close}).click()")


def _assert_no_errors(browser: Any) -> None:
    assert [error for error in browser.errors if not MLFLOW_ERRORS.fullmatch(error)] == []


def _count_colours(path: Path) -> int:
    """Return the number of colours of an image; an empty page has few."""
    return len(Image.open(path).convert("RGB").getcolors(1 << 24) or [])


def test_the_run_tree_expands_to_losses_and_trials(browser: Any, served: ServedStudy) -> None:
    browser.open(served.make_page_url(""), width=1180, height=960)
    browser.wait_for_text(served.name, f"{len(served.runs)} matching runs", served.dataset_label)
    _close_assistant(browser)
    _choose_columns(browser, "Dataset", "Source", "Models", "map_at_r", "recall_at_1")
    _expand(browser, served.name, served.loss)
    head = "[...document.querySelectorAll('.ag-header-cell')].find(h => /^Run N/.test(h.innerText))"
    x, y, _, height = browser.get_box(f"({head}).querySelector('.ag-header-cell-resize')")
    browser.drag(x + 2, y + height / 2, NAME_COLUMN_EXTRA_PIXELS)
    browser.wait_for_text("untrained backbone", served.get_trial_name(0), f"{served.loss} confirm")
    browser.wait_for_text(f"{served.loss} sweep alpha around published")
    _assert_complete_names(browser)
    left, top, width, _ = _get_area_without_menu(browser)
    ends = f"{_ALL}('.ag-row')].map(r => r.getBoundingClientRect().bottom)"
    height = browser.evaluate(f"Math.min(innerHeight - 70, Math.max(...{ends}) + 10)")
    assert _count_colours(browser.screenshot("mlflow-tree", part=(left, top, width, height))) > 100
    _assert_no_errors(browser)


def _choose_columns(browser: Any, *names: str) -> None:
    """Show or hide columns of MLflow's table."""
    browser.click(_button_selector("Columns"))
    for name in names:
        node = f"{_ALL}('.du-bois-light-tree-treenode')].find(e => e.innerText.trim() === '{name}')"
        browser.wait(f"!!({node})")
        browser.evaluate(f"({node}).scrollIntoView({{block: 'center'}})")
        browser.click(f"({node}).querySelector('.du-bois-light-tree-checkbox')")
    for kind in ("keyDown", "keyUp"):
        key = {"key": "Escape", "code": "Escape", "windowsVirtualKeyCode": 27}
        browser.send("Input.dispatchKeyEvent", type=kind, **key)
    browser.wait(f"!{_ALL}('.du-bois-light-tree-treenode')].some(e => e.offsetParent)")


def _button_selector(text: str) -> str:
    return f"{_ALL}('button')].find(b => b.innerText.trim() === '{text}')"


def _assert_complete_names(browser: Any) -> None:
    """Wait until no name of a run is truncated."""
    cut = "getComputedStyle(e).textOverflow === 'ellipsis' && e.scrollWidth > e.clientWidth"
    browser.wait(f"!{_ALL}('[role=gridcell]:has(a) *')].some(e => {cut})")


def _get_area_without_menu(browser: Any) -> tuple[float, float, float, float]:
    """Return the part of the page right of the menu."""
    width, height = browser.evaluate("[innerWidth, innerHeight]")
    return 200.0, 0.0, width - 200.0, height


def _link_selector(name: str) -> str:
    return f"[...document.querySelectorAll('[role=row] a')].find(a => a.innerText === '{name}')"


def _expand(browser: Any, *names: str) -> None:
    for name in names:
        link = _link_selector(name)
        expand = f"({link}).closest('[role=gridcell]').querySelector('svg')"
        browser.wait(f"!!({link}) && !!{expand}")
        browser.click(expand)


def test_a_loss_has_charts(browser: Any, served: ServedStudy) -> None:
    browser.open(served.make_page_url("", compareRunsMode="CHART"), height=1080)
    browser.wait_for_text(f"best/{served.loss}")  # on the study itself
    _close_assistant(browser)
    # MLflow draws the first ten runs, most of which would be parent runs.
    browser.open(
        served.make_page_url("", compareRunsMode="CHART", searchFilter=served.search_filter),
        height=1080,
    )
    _expand(browser, served.loss)
    browser.wait_for_text(served.get_trial_name(0))
    browser.click("document.querySelector('[aria-label=\"Toggle visibility of runs\"]')")
    twenty = f"{_ALL}('[role=menuitemradio]')].find(e => e.innerText.includes('Show first 20'))"
    browser.wait(f"!!({twenty})")
    browser.click(twenty)
    tall = "getComputedStyle(e).cursor === 'ew-resize' && e.clientHeight > 300"
    x, y, width, _ = browser.get_box(f"{_ALL}('div')].find(e => {tall})")
    browser.drag(x + width / 2, y + 60, NAME_COLUMN_EXTRA_PIXELS)
    _assert_complete_names(browser)
    browser.wait(f"{SCROLL_TO_METRICS}, document.body.innerText.includes('images_per_second')")
    lines = f"{_ALL}('.js-plotly-plot')].map(p => p.querySelectorAll('.trace').length)"
    browser.wait(f"{lines}.filter(n => n >= {served.n_curves}).length >= 6")
    browser.send(
        "Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5
    )  # away from highlighted elements
    left, top, width, height = _get_area_without_menu(browser)
    browser.screenshot("mlflow-charts", part=(left, top, width, height - 130))
    browser.open(served.make_run_url(served.loss, "/model-metrics"))
    browser.wait_for_text("map_at_r")
    browser.wait("document.querySelectorAll('.js-plotly-plot .scatterlayer path').length > 0")
    browser.screenshot("mlflow-loss-best")
    browser.open(served.make_run_url(served.loss))
    browser.wait_for_text("scientific", "α", f"{served.loss} confirm", "Finished")
    browser.screenshot("mlflow-loss")
    _assert_no_errors(browser)


def test_a_trial_has_settings_with_units_and_separate_system_metrics(
    browser: Any, served: ServedStudy
) -> None:
    trial = served.get_trial_name(0)
    browser.open(served.make_run_url(trial))
    browser.wait_for_text("batch_size in images", "recall_at_1", "code_version", "published")
    _close_assistant(browser)
    browser.screenshot("mlflow-trial")
    browser.open(served.make_run_url(trial, "/model-metrics"))
    browser.wait_for_text("map_at_r", "lr_head")
    assert "memory_mib" not in browser.evaluate("document.body.innerText")
    browser.open(served.make_run_url(trial, "/system-metrics"))
    browser.wait_for_text("memory_mib", "node_memory_percent")
    browser.screenshot("mlflow-system")
    _assert_no_errors(browser)


def test_the_parent_run_describes_the_study(browser: Any, served: ServedStudy) -> None:
    browser.open(served.make_run_url(served.name))
    browser.wait_for_text("objective map_at_r on validation classes", "conv4", "trials ended")
    browser.wait_for_text(served.dataset_label, "untrained backbone")
    browser.screenshot("mlflow-study")
    _assert_no_errors(browser)


def test_the_artifact_viewer_shows_the_report_with_its_plots(
    browser: Any, served: ServedStudy
) -> None:
    browser.open(served.make_run_url(served.name, "/artifacts/report/index.html"), height=1250)
    browser.wait_for_text("report/index.html")
    _close_assistant(browser)
    frame = browser.wait("!!document.querySelector('iframe')")
    assert frame
    size = "(r => r.width * r.height)(document.querySelector('iframe').getBoundingClientRect())"
    browser.wait(f"{size} > 200000")
    text = _read_report_text(browser)
    assert "Leaderboard" in text
    _, top, _, height = browser.get_box("document.querySelector('iframe')")
    left, _, width, _ = _get_area_without_menu(
        browser
    )  # and below the viewer's header, which shows a path
    shot = browser.screenshot("mlflow-report", part=(left, top, width, height - 80))
    assert _count_colours(shot) > 200
    _assert_no_errors(browser)


def _read_report_text(browser: Any) -> str:
    """Return the text of the sandboxed report once its plots are drawn."""
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


def test_plots_and_galleries_are_artifacts_of_their_runs(served: ServedStudy) -> None:
    client = MlflowClient(served.address)
    on_loss = {
        f.path for f in client.list_artifacts(served.runs[served.loss].info.run_id, "figures")
    }
    assert any("response" in path for path in on_loss)
    assert all(
        path.removesuffix(".png").removesuffix(".svg").endswith(served.loss) for path in on_loss
    )
    galleries = [
        name
        for name, run in served.runs.items()
        if run.data.tags.get("dml.kind") == "trial"
        and any(f.path == f"{served.loss}.png" for f in client.list_artifacts(run.info.run_id))
    ]
    best = max(
        (run for run in served.runs.values() if _is_searched(run, served.loss)),
        key=lambda run: run.data.metrics["map_at_r"],
    )
    assert galleries == [best.info.run_name]


def _is_searched(run: Run, loss: str) -> bool:
    tags = run.data.tags
    wanted = tags.get("origin") in ("published", "sobol", "bayes")
    return wanted and tags.get("loss") == loss and tags.get("state") == "finished"


def test_a_report_through_the_server_has_the_same_bytes(
    served: ServedStudy, tmp_path: Path
) -> None:
    """The report is written in a folder without the study directory."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "study", "report", served.name),
            *("--tracking-uri", served.address, "--out", "remote"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DML_STUDY_HOME": str(tmp_path / "none")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tables = [
        path.relative_to(served.study_dir.report_dir)
        for path in sorted(served.study_dir.report_dir.rglob("*"))
        if path.suffix in (".csv", ".tex", ".json", ".html")
    ]
    assert len(tables) > 10
    for table in tables:
        here, there = served.study_dir.report_dir / table, tmp_path / "remote" / table
        assert here.read_bytes() == there.read_bytes(), table
