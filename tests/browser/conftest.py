"""Debian's Chromium, driven over its own debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-quic", "--disable-extensions", "--remote-debugging-port=0"),
    # Sandboxed frames stay in the page's own process, where their text and errors can be read.
    *("--disable-site-isolation-trials", "--disable-features=IsolateSandboxedIframes"),
    # There is a mouse, as on a desk: charts show their buttons only under it.
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4",
)


class Browser:
    """One page of one Chromium, with every error its console showed."""

    def __init__(self, address: str, shots: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._shots = shots
        self._number = 0
        self.errors: list[str] = []
        self.contexts: dict[int, int] = {}
        self._session, self._socket = self._loop.run_until_complete(self._connect(address))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol and its answer."""
        return self._loop.run_until_complete(self._send(method, params))

    def open(self, address: str, *, width: int = 1500, height: int = 1000) -> None:
        """Go to an address."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=address)

    def evaluate(self, script: str, *, context: int | None = None) -> Any:
        """The value of a JavaScript expression in the page, or in a context (a frame) of it."""
        where = {} if context is None else {"contextId": context}
        answer = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, **where
        )
        return answer["result"].get("value")

    def wait(self, script: str, *, seconds: float = 60.0) -> Any:
        """Wait until an expression is truthy; its value."""
        end = time.monotonic() + seconds
        while True:
            value = self.evaluate(script)
            if value:
                return value
            if time.monotonic() > end:
                self.shot("timed-out")
                text = self.evaluate("document.body.innerText")
                raise AssertionError(f"never true: {script}\n{text}\n{self.errors}")
            time.sleep(0.2)

    def see(self, *texts: str, seconds: float = 60.0) -> None:
        """Wait until the page shows these texts."""
        for text in texts:
            self.wait(f"document.body.innerText.includes({json.dumps(text)})", seconds=seconds)

    def box(self, script: str) -> tuple[float, float, float, float]:
        """Left, top, width and height of the element an expression gives."""
        sides = "(r => [r.x, r.y, r.width, r.height])"
        x, y, width, height = self.evaluate(f"{sides}(({script}).getBoundingClientRect())")
        return x, y, width, height

    def click(self, script: str) -> None:
        """Click in the middle of the element an expression gives."""
        x, y, width, height = self.box(script)
        self.drag(x + width / 2, y + height / 2, 0.0)

    def drag(self, x: float, y: float, right: float) -> None:
        """Press the mouse there and let it go so many pixels further right."""
        way = [("mousePressed", x), ("mouseMoved", x + right / 2), ("mouseMoved", x + right)]
        for kind, place in [*way, ("mouseReleased", x + right)]:
            pressed = {"button": "left", "buttons": 1, "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, x=place, y=y, **pressed)

    def shot(self, name: str, *, part: tuple[float, float, float, float] | None = None) -> Path:
        """Save what the page looks like, or a part of it (left, top, width, height)."""
        clip: dict[str, Any] = {}
        if part is not None:
            clip = {"clip": dict(zip(("x", "y", "width", "height"), part, strict=True), scale=1)}
        data = self.send("Page.captureScreenshot", format="png", **clip)["data"]
        path = self._shots / f"{name}.png"
        path.write_bytes(base64.b64decode(data))
        return path

    def close(self) -> None:
        """Leave the browser."""
        self._loop.run_until_complete(self._session.close())
        self._loop.close()

    async def _connect(
        self, address: str
    ) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
        session = aiohttp.ClientSession()
        return session, await session.ws_connect(address, max_msg_size=0)

    async def _send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json(timeout=60.0)
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._listen(message)

    def _listen(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.executionContextCreated":
            number = params["context"]["id"]
            self.contexts[number] = number
        elif method == "Runtime.executionContextDestroyed":
            self.contexts.pop(params["executionContextId"], None)
        elif method == "Runtime.executionContextsCleared":
            self.contexts.clear()
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(" ".join(str(a.get("value", a)) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures go; a folder named by DML_STUDY_SCREENSHOTS keeps them."""
    named = os.environ.get("DML_STUDY_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def browser(tmp_path: Path, screenshots: Path) -> Iterator[Browser]:
    """A fresh Chromium; skipped where there is none, except in CI."""
    binary = shutil.which("chromium")
    if binary is None:
        reason = "no Chromium: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    profile = tmp_path / "profile"
    process = subprocess.Popen(
        [binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        page = Browser(_page_address(profile, process), screenshots)
        try:
            yield page
        finally:
            page.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def _page_address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """The debugging address of the first page."""
    import urllib.request

    def ask() -> str | None:
        try:
            port = (profile / "DevToolsActivePort").read_text().splitlines()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
                pages = [page for page in json.load(answer) if page["type"] == "page"]
            return str(pages[0]["webSocketDebuggerUrl"])
        except (OSError, IndexError):
            return None

    return _until(ask, process)


def _until(ask: Callable[[], str | None], process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        assert process.poll() is None, "Chromium ended at once"
        found = ask()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("Chromium did not open a page")
