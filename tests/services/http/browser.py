"""Debian's Chromium without a window, driven by its DevTools protocol over a pipe: no port, no driver, no library.

Source: https://chromedevtools.github.io/devtools-protocol/; ``--remote-debugging-pipe`` takes commands from descriptor
3 and writes answers and events to descriptor 4, JSON that ends with a NUL each.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.install import SEARCH, required

ANSWER_S = 120.0
"""How long an answer may take on a busy machine."""
_CLICK_AGAIN_S = 20.0
_ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-extensions", "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-pipe"),
    # No network but this machine's.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)


class NoBrowser(Exception):
    """Absence of Chromium on this machine."""


class Browser:
    """One browser with one page. A context manager: leaving it ends the browser."""

    def __init__(self) -> None:
        self._number, self._pending = 0, b""
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None

    def __enter__(self) -> Browser:
        program = shutil.which("chromium", path=SEARCH)
        if program is None:
            raise NoBrowser("no chromium (package chromium)")
        with contextlib.ExitStack() as undo:
            self._profile = undo.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            commands, self._write = (_high(fd) for fd in os.pipe())
            undo.callback(os.close, self._write)
            self._read, answers = (_high(fd) for fd in os.pipe())
            undo.callback(os.close, self._read)
            log = _high(os.open(os.path.join(self._profile, "log"), os.O_WRONLY | os.O_CREAT, 0o600))
            arguments = [program, *_ARGUMENTS, f"--user-data-dir={self._profile}/profile", "about:blank"]
            actions = [
                (os.POSIX_SPAWN_DUP2, commands, 3),
                (os.POSIX_SPAWN_DUP2, answers, 4),
                *((os.POSIX_SPAWN_DUP2, log, fd) for fd in (1, 2)),
            ]
            self._pid = os.posix_spawn(program, arguments, os.environ, file_actions=actions, setpgroup=0)
            undo.callback(self._end)
            for fd in (commands, answers, log):
                os.close(fd)
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            self.call("Page.enable")
            self.call("Page.setLifecycleEventsEnabled", enabled=True)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    # ---- the protocol ----

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Do one command and return its result."""
        message = self._answer(method, **parameters)
        assert "error" not in message, f"{method}: {message['error']}"
        result: dict[str, Any] = message["result"]
        return result

    def _answer(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        data = json.dumps(command).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + ANSWER_S
        while True:
            message = self._message(deadline)
            if message.get("id") == self._number:
                return message
            self._events.append(message)

    def wait_for(self, event: str) -> dict[str, Any]:
        """Return the next event of a name; those before it are dropped."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            message = self._events.pop(0) if self._events else self._message(deadline)
            if message.get("method") == event:
                found: dict[str, Any] = message["params"]
                return found

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select([self._read], [], [], max(0.0, left_s))
            assert ready, f"the browser does not answer within {ANSWER_S:.0f} s"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended: " + Path(self._profile, "log").read_text(errors="replace")[-2000:]
            self._pending += data
        text, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    # ---- the page ----

    def open(self, url: str) -> None:
        """Load a page, and wait until it is there."""
        self._events.clear()
        found = self.call("Page.navigate", url=url)
        assert "errorText" not in found, f"{url}: {found['errorText']}"
        loaded: tuple[object, object] = ("", "")
        while loaded != (found["loaderId"], "load"):  # the page before may be loaded only now
            event = self.wait_for("Page.lifecycleEvent")
            loaded = event["loaderId"], event["name"]

    def follow(self, selector: str) -> None:
        """Click on a link, and wait until what it leads to is there.

        A page that loads itself again may have no link at this moment, and may come back in place of the target.
        """
        link = f"document.querySelector({json.dumps(selector)})"
        click = f"(one => {{ if (!one) return null; const to = one.href; one.click(); return to; }})({link})"
        deadline, click_at = time.monotonic() + ANSWER_S, 0.0
        target: str | None = None
        while (seen := self.value("[location.href, document.readyState]")) != [target, "complete"]:
            assert time.monotonic() < deadline, f"{target or selector} is not there within {ANSWER_S:.0f} s"
            if time.monotonic() >= click_at and seen[0] != target and (found := self.value(click)) is not None:
                target, click_at = found, time.monotonic() + _CLICK_AGAIN_S
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript; of a promise that of its end."""
        while True:
            found = self._answer("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
            if "error" not in found:
                break
            # The page was just loaded again.
            assert "context" in (text := found["error"]["message"]) or "navigated" in text, text
        result = found["result"]
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def text(self) -> str:
        """Return what a reader sees of the page."""
        return str(self.value("document.body ? document.body.innerText : ''"))

    def resize(self, width: int, height: int = 800, *, is_phone: bool = False, scale: float = 1.0) -> None:
        """Give the window another size [pixels]."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=is_phone
        )

    def prefer(self, scheme: str = "light", medium: str = "") -> None:
        """Ask for a scheme of colours, ``light`` or ``dark``, and for the style of a medium such as ``print``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    def press(self, key: str) -> None:
        """Press and release a key: ``Tab``, ``Enter``."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("rawKeyDown" if not text else "keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def picture(self, *, height: int | None = None) -> bytes:
        """Return a picture of the page as PNG: all of it, or so many pixels from its top."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        high = size["height"] if height is None else min(height, size["height"])
        clip = {"x": 0, "y": 0, "width": size["width"], "height": high, "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def printed(self) -> bytes:
        """Return the page as it is printed, as PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])


def _high(fd: int) -> int:
    """Move a descriptor away from those that a browser gets."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return moved


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a module."""
    try:
        with Browser() as found:
            yield found
    except NoBrowser as missing:
        if required():
            pytest.fail(str(missing))
        pytest.skip(str(missing))
