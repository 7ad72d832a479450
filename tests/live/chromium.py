"""A headless Chromium that a test drives over its debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

ROOT = Path(__file__).parents[2]
NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
"""Names under which the browser is installed; Debian has the first two."""
POLL_S = 0.05
WITHIN_S = 150.0
"""A limit for what takes a second on an idle machine."""
LISTENING = re.compile(rb"DevTools listening on (ws://\S+)")


def browser() -> str | None:
    """Return the path of the browser, None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser with one page; use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Prepare a browser whose profile is in `folder`."""
        if (path := browser()) is None:
            subprocess.run([ROOT / ".ci" / "chromium"], check=True)
            path = browser()
        assert path is not None
        self._command = [
            path, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
            "--disable-dev-shm-usage", "--no-proxy-server", f"--user-data-dir={folder}",
            "about:blank",
        ]  # fmt: skip
        self.complaints: list[str] = []
        """Errors and warnings on the console, uncaught exceptions, and failed requests."""
        self.addresses: list[str] = []
        """The address of each request of the page."""
        self._number = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}

    async def __aenter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        address = await asyncio.to_thread(self._listening)
        port = address.split(":")[2].split("/")[0]
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json") as answer:
            (target, *_) = [each for each in await answer.json() if each["type"] == "page"]
        self._socket = await self._session.ws_connect(
            target["webSocketDebuggerUrl"], max_msg_size=2**26
        )
        self._reader = asyncio.ensure_future(self._read())
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._reader.cancel()
        await self._socket.close()
        await self._session.close()
        os.killpg(self._process.pid, signal.SIGKILL)  # Debian's command is a script around it
        await asyncio.to_thread(self._process.wait)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _listening(self) -> str:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := LISTENING.search(line):
                return found[1].decode()
        raise AssertionError("the browser ended before it listened")

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        self._answers[self._number] = answer = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        return await asyncio.wait_for(answer, WITHIN_S)

    async def _read(self) -> None:
        async for message in self._socket:
            found = json.loads(message.data)
            if "id" in found:
                self._answers.pop(found["id"]).set_result(found.get("result", found))
            else:
                self._noted(found["method"], found["params"])

    def _noted(self, method: str, details: Any) -> None:
        match method:
            case "Runtime.consoleAPICalled" if details["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(details["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(details["exceptionDetails"]))
            case "Log.entryAdded" if details["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(details["entry"]))
            case "Network.requestWillBeSent":
                self.addresses.append(details["request"]["url"])
            case _:
                pass

    async def open(self, address: str) -> None:
        """Go to an address."""
        await self.call("Page.navigate", url=address)

    async def prefers(self, scheme: str) -> None:
        """Prefer "light" or "dark" from now on."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Give the window this size in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    async def run(self, script: str) -> Any:
        """Run a script in the page, and return its value."""
        found = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str, wanted: Callable[[Any], bool] = bool) -> Any:
        """Run a script again and again until its value is as wanted; return the value."""
        end_s, value = time.monotonic() + WITHIN_S, None
        while time.monotonic() < end_s:
            value = await self.run(script)
            if wanted(value):
                return value
            await asyncio.wait({self._reader}, timeout=POLL_S)
        raise AssertionError(f"{script} is {value!r} after {WITHIN_S:g} s")

    async def picture(self, path: Path) -> None:
        """Write a picture of the window as PNG."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
