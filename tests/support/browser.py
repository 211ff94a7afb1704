"""A headless Chromium, driven over its pipe: what a page shows, logs and asks for."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOUND = shutil.which("chromium")


class Browser:
    """One tab. `errors`: exceptions and error messages of its pages; `asked`: the addresses they fetched."""

    def __init__(self, commands: int, replies: int) -> None:
        self._commands, self._replies = commands, replies
        self._pending = b""
        self._number = 0
        self.errors: list[str] = []
        self.asked: list[str] = []
        self._loaded = False
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(1280, 900)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command's result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (reply := self._next()).get("id") != self._number:
            self._note(reply)
        assert "error" not in reply, (method, reply["error"])
        return dict(reply["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            got = os.read(self._replies, 1 << 20)
            assert got, "the browser is gone"
            self._pending += got
        line, _, self._pending = self._pending.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        name, params = event.get("method"), event.get("params", {})
        if name == "Page.loadEventFired":
            self._loaded = True
        elif name == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif name == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif name == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(str(params["args"]))

    def open(self, page: Path) -> None:
        """Show a file, from a clean sheet; returns when it is loaded and drawn."""
        self.errors.clear()
        self.asked.clear()
        self._loaded = False
        self.send("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._note(self._next())
        self.settle()

    def settle(self) -> None:
        """Wait until what has changed is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; of a promise what it resolves to."""
        got = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """The text of each element that `selector` finds."""
        return list(self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)"))

    @property
    def text(self) -> str:
        """All words of the page."""
        return str(self.run("document.body.innerText")).replace("\u200b", "")

    def click(self, selector: str) -> None:
        """Click on an element."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")
        self.settle()

    def key(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def mouse(self, *points: tuple[float, float], drag: bool = False) -> None:
        """Move the mouse from point to point of the window, with its button pressed if it is to drag."""
        for k, (x, y) in enumerate(points):
            pressed = {"button": "left", "buttons": 1} if drag and k else {}
            self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, **pressed)
            if drag and k in (0, len(points) - 1):
                kind = "mouseReleased" if k else "mousePressed"
                self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """The window's size, and which colours its user likes."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def picture(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile; it ends with the block."""
    assert FOUND is not None
    (theirs_in, commands), (replies, theirs_out) = os.pipe(), os.pipe()
    ends = f"{theirs_in} {theirs_out}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"]
    shell = f'exec 3<&{theirs_in} 4>&{theirs_out} {FOUND} "$@"'
    process = subprocess.Popen(
        ["bash", "-c", shell, ends, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
        pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(commands, replies)
    finally:
        os.close(commands)
        os.close(replies)
        process.terminate()
        process.wait(10)
