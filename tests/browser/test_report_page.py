"""Does the page work in a real browser: plots drawn, nothing fetched, nothing injected?"""

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

from study.report.build import write_report
from tests.study.demo import demo_table

pytestmark = pytest.mark.browser

NAME = "<script>alert(1)</script>"
FLAGS = (
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
A4 = 718
"""Width of a sheet within its margins, in the browser's units."""


@pytest.fixture(scope="module")
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail("CI must have Chromium")
    pytest.skip("no Chromium here")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every section, and hostile names wherever a user may put one."""
    table = demo_table(trials=40, study=NAME)
    trials = table.trials.assign(trial=[f"{NAME}{i}" for i in range(len(table.trials))])
    keys = dict(zip(table.trials["trial"], trials["trial"], strict=True))
    curves = table.curves.assign(trial=table.curves["trial"].map(keys))
    protocol = {**table.protocol, "dataset": NAME, "backbone": '"><img src=x onerror=alert(2)>'}
    hostile = replace(table, trials=trials, curves=curves, protocol=protocol)
    folder = tmp_path_factory.mktemp("report")
    return write_report(hostile, folder, formats=("png",)).index


@dataclass
class Seen:
    """What the browser told while the page was open."""

    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, bytes] = field(default_factory=dict)


class Page:
    """A tab, spoken to over the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, seen: Seen) -> None:
        self.socket, self.seen, self.count = socket, seen, 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        mine = self.count
        await self.socket.send_json({"id": mine, "method": method, "params": params})
        while True:
            message = json.loads((await self.socket.receive(timeout=60)).data)
            if message.get("id") == mine:
                answer: dict[str, Any] = message.get("result", message)
                return answer
            self._note(message)

    async def value(self, script: str) -> Any:
        found = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        return found["result"].get("value")

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.seen.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.seen.problems.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.seen.problems.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.seen.problems.append(str(params["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.seen.problems.append(f"dialog: {params['message']}")


@contextmanager
def _chromium(executable: str) -> Iterator[str]:
    """A browser with a fresh profile; gives the address of its first tab."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "DevTools listening" in line)
            port = line.split("127.0.0.1:")[1].split("/")[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=30) as answer:
                tabs = json.load(answer)
            yield next(t["webSocketDebuggerUrl"] for t in tabs if t["type"] == "page")
        finally:
            process.terminate()
            process.wait(timeout=30)


async def _visit(
    address: str, index: Path, *, width: int, dark: bool, printed: bool = False
) -> Seen:
    """The page as it is seen, or as it is printed from such a screen."""
    seen = Seen()
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=0) as socket,
    ):
        page = Page(socket, seen)
        for domain in ("Network", "Runtime", "Log", "Page"):
            await page.call(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await page.call("Emulation.setEmulatedMedia", features=[scheme])
        await page.call("Page.navigate", url=index.as_uri())
        for _ in range(200):
            if await page.value("document.readyState === 'complete' && !!window.drawAll"):
                break
            await asyncio.sleep(0.1)
        if printed:
            # As the browser does it: the page is told while it is still laid out for the screen.
            await page.value("drawAll(false).then(() => dispatchEvent(new Event('beforeprint')))")
            await page.call("Emulation.setEmulatedMedia", media="print", features=[scheme])
            paper = {**size, "width": A4, "mobile": False}
            await page.call("Emulation.setDeviceMetricsOverride", **paper)
            await page.value("new Promise(r => setTimeout(() => r(true), 500))")
        else:
            await page.value("drawAll(false).then(() => true)")
        for name, script in QUESTIONS.items():
            seen.values[name] = await page.value(script)
        shot = await page.call("Page.captureScreenshot", captureBeyondViewport=printed)
        seen.pictures["screen"] = base64.b64decode(shot["data"])
        if printed:
            return seen
        await page.value("document.getElementById('theme').click()")
        seen.values["switched"] = await page.value(QUESTIONS["paper"])
    return seen


QUESTIONS = {
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
def test_the_page_in_chromium(browser: str, index: Path, width: int, dark: bool) -> None:
    with _chromium(browser) as address:
        seen = asyncio.run(_visit(address, index, width=width, dark=dark))
    assert seen.problems == []
    outside = [u for u in seen.requests if not u.startswith(("file:", "data:", "blob:"))]
    assert outside == []
    assert seen.requests.count(index.as_uri()) == 1
    assert seen.values["plots"] >= 20
    assert seen.values["empty"] == []
    assert NAME in seen.values["title"], "the name must be shown, as text"
    assert seen.values["images"] == 0, "an injected picture"
    assert seen.values["overflow"] <= 0, "the page scrolls sideways"
    assert "proxy_anchor" in seen.values["headline"]
    assert seen.values["first_screen"] <= (900 if width > 600 else 1100)
    assert seen.values["paper"] != seen.values["switched"], "the theme button does nothing"
    assert seen.pictures["screen"].startswith(b"\x89PNG")
    folder = os.environ.get("DML_STUDY_SCREENSHOTS")
    if folder:
        name = f"report-{width}{'-dark' if dark else ''}.png"
        (Path(folder) / name).write_bytes(seen.pictures["screen"])


def test_the_page_on_paper(browser: str, index: Path) -> None:
    """Black on white from a dark screen, every plot drawn, nothing beyond the sheet's edge."""
    with _chromium(browser) as address:
        seen = asyncio.run(_visit(address, index, width=1280, dark=True, printed=True))
    folder = os.environ.get("DML_STUDY_SCREENSHOTS")
    if folder:
        (Path(folder) / "report-printed.png").write_bytes(seen.pictures["screen"])
    assert seen.problems == []
    assert seen.values["plots"] >= 20
    assert seen.values["empty"] == []
    assert seen.values["cut"] == []
    assert seen.values["overflow"] <= 0
    assert (seen.values["paper"], seen.values["ink"]) == ("rgb(255, 255, 255)", "rgb(0, 0, 0)")
    assert seen.values["buttons"] == 0
