"""A state directory that several real users of the machine use, through processes of theirs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from dlapp.cluster.local.state import StateDir, is_locked, machine_name
from tests.applications import processes, wait_for
from tests.services.processes import small_app
from tests.services.users import interpreter_for_everybody, seeing_users

GROUP = 60_100
ROOT, ANN, TONY = 0, 60_101, 60_102


class Place:
    """A state directory, used by several users through processes of theirs."""

    def __init__(self, top: Path, shared: bool) -> None:
        self.top, self.shared = top, shared
        path = str(top / "state" / machine_name())
        self.state = StateDir(f"{path}-{ROOT}" if shared else path, shared=shared)
        self.options = {"local.memory": "1000", "local.shared": str(shared).lower()}
        self._python = interpreter_for_everybody()
        self._as_root = seeing_users(top, ANN, TONY, gid=GROUP)
        if shared:
            (top / "state").mkdir()
            os.chown(top / "state", ROOT, GROUP)
            (top / "state").chmod(0o3770)

    def run(self, uid: int, *words: str) -> str:
        """Run a process of ``uid``; what it prints."""
        become = ["setpriv", f"--reuid={uid}", f"--regid={GROUP}", "--clear-groups"] if uid else self._as_root
        command: list[str | Path] = [
            *become,
            self._python,
            "-I",
            small_app.__file__,
            self.top / "state",
            json.dumps(self.options),
            *words,
        ]
        environment = os.environ | {"HOME": str(self.top)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd="/", env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, uid: int, *words: str) -> str:
        """Submit an application; its id."""
        return self.run(uid, "1", *words)

    def call(self, uid: int, what: str, application_id: str = "") -> Any:
        """Make a call of the engine as ``uid``."""
        return json.loads(self.run(uid, what, application_id))

    def wait_for(self, uid: int, application_id: str, state: str) -> dict[str, Any]:
        """Wait until an application is in a state, as ``uid`` sees it."""

        def look() -> dict[str, Any] | None:
            view: dict[str, Any] = self.call(uid, "view", application_id)
            return view if view.get("state") == state else None

        return wait_for(f"{application_id} is {state}", look)

    def kill_runner(self, uid: int) -> None:
        """SIGKILL to the runner of ``uid``."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
                if (
                    b"runner" in words
                    and os.fsencode(self.state.of(uid).path) in words
                    and os.stat(f"/proc/{name}").st_uid == uid
                ):
                    os.kill(int(name), signal.SIGKILL)
        wait_for("its lock is free", lambda: not is_locked(self.state.runner_lock(uid)))

    def clear(self) -> None:
        """Wait until nobody works here: a runner that ends, or one that has not taken its lock yet."""
        wait_for("the end of all processes", lambda: not processes(self.top))
