"""Making, running and looking at whole applications: what the end-to-end tests share."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dlapp.client import Client
from dlapp.system import clock
from dlapp.system.processes.proc import process_stat, start_time
from dlapp.tools.common import whole
from dlapp.tools.display.view import derived
from tests.services.polling import wait_until

if TYPE_CHECKING:
    from dlapp.cluster.engine import Engine
    from dlapp.values.report import ApplicationView

T = TypeVar("T")
BIN = Path(sys.executable).parent


def wait_for(what: str, look: Callable[[], T | Literal[False] | None], timeout_s: float = 120.0) -> T:
    """Look again and again until there is something to see; it is returned."""
    return wait_until(look, timeout_s, what)


@dataclass(frozen=True)
class Done:
    """Output of a command, and its exit code."""

    code: int
    out: str
    err: str


def run(command: str, *args: object, env: dict[str, str] | None = None, timeout_s: float = 120.0) -> Done:
    """Run one of our commands to its end."""
    done = subprocess.run(
        [BIN / command, *map(str, args)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        env={**os.environ, **(env or {})},
    )
    return Done(done.returncode, done.stdout, done.stderr)


def properties(directory: Path, script: str, *, name: str = "test", **sections: Mapping[str, object]) -> Path:
    """Write a workspace with one start script and its properties file.

    Args:
        directory: for both; it is made.
        script: lines of the start script.
        name: of the application, and in the names of its workspace and its file.
        sections: keys that come on top; one whose value is None is left out, so it has its default.
    """
    workspace = directory / f"{name}_workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    start = workspace / "start.sh"
    start.write_text(f"#!/bin/sh\n{script}\n")
    start.chmod(0o755)
    keys: dict[str, dict[str, object]] = {
        "application": {
            "appname": name,
            "user_dev_workspace_path": f"./{workspace.name}",
            "user_shell_script": "start.sh",
        },
        "resources": {"memory": 64, "gcores": 0},
    }
    for section, values in sections.items():
        keys.setdefault(section, {}).update(values)
    file = directory / f"{name}.properties"
    file.write_text(
        "".join(
            f"[{head}]\n" + "".join(f"{key}={value}\n" for key, value in body.items() if value is not None)
            for head, body in keys.items()
        )
    )
    return file


def launch(file: Path, **env: str) -> str:
    """Submit; the application's id."""
    done = run("dlapp-launcher", file, env=env)
    assert done.code == 0, done.err
    return next(line.partition(" = ")[2] for line in done.out.splitlines() if line.startswith("DL App ID"))


def status(application: str) -> dict[str, Any]:
    """Return what ``dlapp-status --json`` says of it, without a process: tests look many times while they wait."""
    with contextlib.closing(Client()) as client:
        view = client.view_of(client.resolve_text(application)).json
        beside = {"logs": client.log_urls(view), "unstored": client.unstored(view)}
    return dict(json.loads(json.dumps({**whole(view), **derived(view, clock.now_ms()), **beside})))


def listed(engine: Engine, **options: Any) -> list[ApplicationView]:
    """Return the views of an engine's applications; the options are those of its `views`."""
    return [one.value for one in engine.views(**options)]


def listed_json(engine: Engine, **options: Any) -> list[dict[str, Any]]:
    """Return `listed` in JSON form."""
    return [one.json for one in engine.views(**options)]


def ended(application: str, timeout_s: float = 120.0) -> dict[str, Any]:
    """Wait for the end; the status then."""

    def look() -> dict[str, Any] | None:
        now = status(application)
        return now if now["state"] in ("FINISHED", "FAILED", "KILLED") else None

    return wait_for(f"the end of {application}", look, timeout_s)


def application_dir(state_dir: Path, application: str) -> Path:
    """Return where the embedded engine keeps it."""
    (found,) = state_dir.glob(f"*/applications/{application}")
    return found


@dataclass(frozen=True)
class Process:
    """A process that is there: ``role`` is am, task, runner or payload (all else that works under the directory)."""

    pid: int
    role: str
    command: str


def processes(under: Path) -> list[Process]:
    """The living processes whose command line, working directory or environment names a place under ``under``."""
    base = os.fsencode(str(under))
    return list(_processes(lambda command, where, rest: base in command or where.startswith(base) or base in rest))


def kill_processes(pids: Collection[int]) -> None:
    """Send SIGKILL to all at once, and wait for their ends.

    No command starts a runner while a killed one still holds its lock.
    """
    began = {pid: start_time(pid) for pid in pids}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def has_ended(pid: int) -> bool:
        now = process_stat(pid)
        # The first thread of several may have ended before the others, which still hold the locks.
        return now is None or now.started != began[pid] or (now.is_dead and now.threads <= 1)

    wait_for("the ends of the killed", lambda: all(map(has_ended, pids)))


def processes_of(application: str) -> list[Process]:
    """The living processes of an application of YARN that work, or did, in the directories of its containers here."""
    base = f"/appcache/{application}/".encode()
    return list(_processes(lambda *texts: any(base in text for text in texts)))


def open_files(pid: int) -> list[str]:
    """Return what a process has open; it may close some meanwhile."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _processes(is_one: Callable[[bytes, bytes, bytes], bool]) -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            stat = Path("/proc", name, "stat").read_bytes()
            command = Path("/proc", name, "cmdline").read_bytes()
            where = os.fsencode(os.readlink(f"/proc/{name}/cwd"))
            environment = Path("/proc", name, "environ").read_bytes()
        except OSError:
            continue
        if stat.rpartition(b") ")[2][:1] in (b"Z", b"X") or not is_one(command, where + b"/", environment):
            continue
        words = command.split(b"\0")
        role = "payload"
        for program, after in itertools.pairwise(words):
            if program in (b"dlapp", b"dlapp.pyz") or program.endswith(b"/dlapp/__main__.py"):
                role = after.decode()
        yield Process(int(name), role, command.replace(b"\0", b" ").decode(errors="replace"))
