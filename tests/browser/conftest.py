"""Fixtures of the browser tests: Chromium, controlled over the DevTools protocol."""

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

CHROMIUM_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-quic", "--disable-extensions", "--remote-debugging-port=0"),
    # Sandboxed frames stay in the page's own process, where their text and errors can be read.
    *("--disable-site-isolation-trials", "--disable-features=IsolateSandboxedIframes"),
    # A mouse is present: charts show their buttons only when it hovers over them.
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4",
)


class Browser:
    """Page in Chromium that stores the errors of its console."""

    def __init__(self, address: str, screenshots: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._screenshots = screenshots
        self._number = 0
        self.errors: list[str] = []
        self.contexts: dict[int, int] = {}
        self._session, self._socket = self._loop.run_until_complete(self._connect(address))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the protocol and return the result."""
        return self._loop.run_until_complete(self._send(method, params))

    def open(self, address: str, *, width: int = 1500, height: int = 1000) -> None:
        """Open an address."""
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
        """Return the value of a JavaScript expression in the page or in one of its frames."""
        options = {} if context is None else {"contextId": context}
        response = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, **options
        )
        return response["result"].get("value")

    def wait(self, script: str, *, seconds: float = 60.0) -> Any:
        """Wait until an expression is truthy and return its value."""
        end = time.monotonic() + seconds
        while True:
            value = self.evaluate(script)
            if value:
                return value
            if time.monotonic() > end:
                self.screenshot("timed-out")
                text = self.evaluate("document.body.innerText")
                raise AssertionError(f"never true: {script}\n{text}\n{self.errors}")
            time.sleep(0.2)

    def wait_for_text(self, *texts: str, seconds: float = 60.0) -> None:
        """Wait until the page shows these texts."""
        for text in texts:
            self.wait(f"document.body.innerText.includes({json.dumps(text)})", seconds=seconds)

    def get_box(self, script: str) -> tuple[float, float, float, float]:
        """Return left, top, width and height of the element that an expression selects."""
        sides = "(r => [r.x, r.y, r.width, r.height])"
        x, y, width, height = self.evaluate(f"{sides}(({script}).getBoundingClientRect())")
        return x, y, width, height

    def click(self, script: str) -> None:
        """Click in the middle of the element that an expression selects."""
        x, y, width, height = self.get_box(script)
        self.drag(x + width / 2, y + height / 2, 0.0)

    def drag(self, x: float, y: float, right: float) -> None:
        """Press the mouse button at a point and release it `right` pixels further right."""
        moves = [("mousePressed", x), ("mouseMoved", x + right / 2), ("mouseMoved", x + right)]
        for kind, position in [*moves, ("mouseReleased", x + right)]:
            button = {"button": "left", "buttons": 1, "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, x=position, y=y, **button)

    def screenshot(
        self, name: str, *, part: tuple[float, float, float, float] | None = None
    ) -> Path:
        """Save a screenshot of the page, or of a part of it (left, top, width, height)."""
        clip: dict[str, Any] = {}
        if part is not None:
            clip = {"clip": dict(zip(("x", "y", "width", "height"), part, strict=True), scale=1)}
        data = self.send("Page.captureScreenshot", format="png", **clip)["data"]
        path = self._screenshots / f"{name}.png"
        path.write_bytes(base64.b64decode(data))
        return path

    def close(self) -> None:
        """Close the connection to the browser."""
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
            self._record_event(message)

    def _record_event(self, message: dict[str, Any]) -> None:
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
    """Return the folder of screenshots: DML_STUDY_SCREENSHOTS or a temporary one."""
    named = os.environ.get("DML_STUDY_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def browser(tmp_path: Path, screenshots: Path) -> Iterator[Browser]:
    """Start Chromium with a new profile; skip the test if it is missing, except in CI."""
    binary = shutil.which("chromium")
    if binary is None:
        reason = "no Chromium: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    profile = tmp_path / "profile"
    process = subprocess.Popen(
        [binary, *CHROMIUM_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        page = Browser(_find_page_address(profile, process), screenshots)
        try:
            yield page
        finally:
            page.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def _find_page_address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the debugging address of the first page."""
    import urllib.request

    def find_address() -> str | None:
        try:
            port = (profile / "DevToolsActivePort").read_text().splitlines()[0]
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/json/list", timeout=5
            ) as response:
                pages = [page for page in json.load(response) if page["type"] == "page"]
            return str(pages[0]["webSocketDebuggerUrl"])
        except (OSError, IndexError):
            return None

    return _poll_until_found(find_address, process)


def _poll_until_found(find: Callable[[], str | None], process: subprocess.Popen[bytes]) -> str:
    """Call `find` until it returns a value; fail if the browser exits or after a minute."""
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        assert process.poll() is None, "Chromium exited at once"
        value = find()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError("Chromium did not open a page")
