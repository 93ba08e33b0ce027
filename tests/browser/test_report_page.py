"""Tests of the report page in a real browser: plots drawn, nothing fetched or injected."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from study.report.writer import write_report
from tests.support.demo_study import make_demo_table

pytestmark = pytest.mark.browser

HOSTILE_NAME = "<script>alert(1)</script>"
CHROMIUM_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)
A4_WIDTH_PIXELS = 718
"""Width of an A4 sheet within its margins, in CSS pixels."""


@pytest.fixture(scope="module")
def browser() -> str:
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable:
        return executable
    if os.environ.get("CI") == "true":
        pytest.fail("CI needs Chromium")
    pytest.skip("no Chromium on this machine")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a report with every section, with hostile names wherever users choose names."""
    table = make_demo_table(trials=40, study=HOSTILE_NAME)
    trials = table.trials.assign(trial=[f"{HOSTILE_NAME}{i}" for i in range(len(table.trials))])
    keys = dict(zip(table.trials["trial"], trials["trial"], strict=True))
    curves = table.curves.assign(trial=table.curves["trial"].map(keys))
    protocol = {
        **table.protocol,
        "dataset": HOSTILE_NAME,
        "backbone": '"><img src=x onerror=alert(2)>',
    }
    hostile = replace(table, trials=trials, curves=curves, protocol=protocol)
    folder = tmp_path_factory.mktemp("report")
    return write_report(hostile, folder, formats=("png",)).index_path


@dataclass
class PageEvents:
    """Requests, errors and values that the browser reported while the page was open."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    screenshot: bytes = b""


class Page:
    """Browser tab that is controlled over the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, events: PageEvents) -> None:
        self.socket, self.events, self.count = socket, events, 0

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        number = self.count
        await self.socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = json.loads((await self.socket.receive(timeout=60)).data)
            if message.get("id") == number:
                response: dict[str, Any] = message.get("result", message)
                return response
            self._record_event(message)

    async def evaluate(self, script: str) -> Any:
        response = await self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        return response["result"].get("value")

    def _record_event(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.events.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.events.errors.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.events.errors.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.events.errors.append(str(params["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.events.errors.append(f"dialog: {params['message']}")


@contextmanager
def _run_chromium(executable: str) -> Iterator[str]:
    """Start a browser with a fresh profile and yield the address of its first tab."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [executable, *CHROMIUM_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "DevTools listening" in line)
            port = line.split("127.0.0.1:")[1].split("/")[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=30) as response:
                tabs = json.load(response)
            yield next(t["webSocketDebuggerUrl"] for t in tabs if t["type"] == "page")
        finally:
            process.terminate()
            process.wait(timeout=30)


async def _visit_page(
    address: str, index: Path, *, width: int, dark: bool, printed: bool = False
) -> PageEvents:
    """Open the page on a screen of this width, or print it from such a screen."""
    events = PageEvents()
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=0) as socket,
    ):
        page = Page(socket, events)
        for domain in ("Network", "Runtime", "Log", "Page"):
            await page.send(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        await page.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await page.send("Emulation.setEmulatedMedia", features=[scheme])
        await page.send("Page.navigate", url=index.as_uri())
        for _ in range(200):
            if await page.evaluate("document.readyState === 'complete' && !!window.drawAll"):
                break
            await asyncio.sleep(0.1)
        if printed:
            # As browsers do it: `beforeprint` while the page still has its screen layout.
            await page.evaluate(
                "drawAll(false).then(() => dispatchEvent(new Event('beforeprint')))"
            )
            await page.send("Emulation.setEmulatedMedia", media="print", features=[scheme])
            paper = {**size, "width": A4_WIDTH_PIXELS, "mobile": False}
            await page.send("Emulation.setDeviceMetricsOverride", **paper)
            await page.evaluate("new Promise(r => setTimeout(() => r(true), 500))")
        else:
            await page.evaluate("drawAll(false).then(() => true)")
        for name, script in SCRIPTS.items():
            events.values[name] = await page.evaluate(script)
        shot = await page.send("Page.captureScreenshot", captureBeyondViewport=printed)
        events.screenshot = base64.b64decode(shot["data"])
        if printed:
            return events
        await page.evaluate("document.getElementById('theme').click()")
        events.values["switched"] = await page.evaluate(SCRIPTS["paper"])
    return events


SCRIPTS = {
    "plots": "document.querySelectorAll('.plot').length",
    "drawn": "document.querySelectorAll('.plot[data-drawn] svg.main-svg').length / 3",
    "empty": "[...document.querySelectorAll('.plot')].filter(p => !p.querySelector("
    "'.points path, .js-line, .hm image')).map(p => p.id)",
    "title": "document.title",
    "images": "document.images.length",
    "overflow": "document.documentElement.scrollWidth - document.documentElement.clientWidth",
    "headline": "document.querySelector('h1').textContent",
    "first_screen": "document.querySelector('#answer').getBoundingClientRect().bottom",
    "paper": "getComputedStyle(document.body).backgroundColor",
    "ink": "getComputedStyle(document.body).color",
    "cut": "[...document.querySelectorAll('table, .plot svg, p')].filter(e => "
    "e.getBoundingClientRect().right > (e.closest('.panel') || document.documentElement)"
    ".getBoundingClientRect().right + 1)"
    ".map(e => e.closest('section')?.id + ' ' + e.textContent.slice(0, 60))",
    "buttons": "[...document.querySelectorAll('nav, #theme')].filter(e => e.offsetParent).length",
}


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_draws_all_plots_without_errors_or_requests(
    browser: str, index: Path, width: int, dark: bool
) -> None:
    with _run_chromium(browser) as address:
        events = asyncio.run(_visit_page(address, index, width=width, dark=dark))
    assert events.errors == []
    outside = [u for u in events.requests if not u.startswith(("file:", "data:", "blob:"))]
    assert outside == []
    assert events.requests.count(index.as_uri()) == 1
    assert events.values["plots"] >= 20
    assert events.values["empty"] == []
    assert HOSTILE_NAME in events.values["title"], "the name must be shown, as text"
    assert events.values["images"] == 0, "an image was injected"
    assert events.values["overflow"] <= 0, "the page scrolls sideways"
    assert "proxy_anchor" in events.values["headline"]
    assert events.values["first_screen"] <= (900 if width > 600 else 1100)
    assert events.values["paper"] != events.values["switched"], "the theme button does nothing"
    assert events.screenshot.startswith(b"\x89PNG")
    folder = os.environ.get("DML_STUDY_SCREENSHOTS")
    if folder:
        name = f"report-{width}{'-dark' if dark else ''}.png"
        (Path(folder) / name).write_bytes(events.screenshot)


def test_the_printed_page_is_complete(browser: str, index: Path) -> None:
    """It is black on white even from a dark screen, with all plots and nothing cut off."""
    with _run_chromium(browser) as address:
        events = asyncio.run(_visit_page(address, index, width=1280, dark=True, printed=True))
    folder = os.environ.get("DML_STUDY_SCREENSHOTS")
    if folder:
        (Path(folder) / "report-printed.png").write_bytes(events.screenshot)
    assert events.errors == []
    assert events.values["plots"] >= 20
    assert events.values["empty"] == []
    assert events.values["cut"] == []
    assert events.values["overflow"] <= 0
    assert (events.values["paper"], events.values["ink"]) == ("rgb(255, 255, 255)", "rgb(0, 0, 0)")
    assert events.values["buttons"] == 0
