"""An ordinary user's applications, for which the kernel makes no pid namespace: all who watch over one are killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.applications import Done, kill_processes, processes, properties, wait_for
from tests.services.users import interpreter_for_everybody

USER = 12_347
DAEMON = """
import os
os.closerange(3, 1024)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "3003"], {})
    os._exit(0)
os.execv("/bin/sleep", ["sleep", "3003"])
"""

Run = Callable[..., Done]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the user may look into, as pytest's own is not; afterwards nothing may run there."""
    top = Path(tempfile.mkdtemp(prefix="dlapp-user-"))
    top.chmod(0o777)
    yield top
    try:
        wait_for("the end of all processes", lambda: not processes(top))
    finally:
        kill(top, "runner", "am", "task", "payload")
        shutil.rmtree(top)


@pytest.fixture
def command(place: Path) -> Run:
    """Run a command as the user."""
    python = interpreter_for_everybody() if os.geteuid() == 0 else Path(sys.executable)
    become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if os.geteuid() == 0 else []
    paths = {"HOME": place, "DLAPP_LOCAL_STATE_DIR": place / "state", "DLAPP_GPUID_LOCK_DIR": place / "gpus"}
    env = {**os.environ, "DLAPP_LOCAL_VCORES": "1", **{name: str(path) for name, path in paths.items()}}

    def command(name: str, *args: object) -> Done:
        words: list[str | Path] = [*become, python, "-m", "dlapp.tools", name, *map(str, args)]
        done = subprocess.run(
            words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, env=env, cwd=place
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return command


def launch(command: Run, file: Path) -> str:
    done = command("dlapp-launcher", file)
    assert done.code == 0, done.err
    return next(line.partition(" = ")[2] for line in done.out.splitlines() if line.startswith("DL App ID"))


def status(command: Run, application: str) -> dict[str, Any]:
    return dict(json.loads(command("dlapp-status", "--json", application).out))


def running(command: Run, application: str) -> None:
    wait_for("its payload", lambda: any(c["phase"] == "running" for c in status(command, application)["containers"]))


def kill(place: Path, *roles: str) -> None:
    """SIGKILL to all of these roles in one moment, as they see it: none runs when the first one dies."""
    send(place, signal.SIGSTOP, *roles)
    kill_processes([process.pid for process in processes(place) if process.role in roles])


def send(place: Path, number: signal.Signals, *roles: str) -> None:
    """Send a signal to all of these roles."""
    for process in [one for one in processes(place) if one.role in roles]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["sleep 3003", "daemon"])
def test_a_payload_whose_guardians_are_all_killed_ends_and_the_queue_continues(
    place: Path, command: Run, script: str
) -> None:
    if script == "daemon":
        (place / "daemon.py").write_text(DAEMON)
        script = f"exec {interpreter_for_everybody()} {place}/daemon.py"
    first = launch(command, properties(place, script, name="first"))
    second = launch(command, properties(place, "echo second", name="second"))
    running(command, first)
    many = 2 if "daemon" in script else 1

    def sleeping() -> bool:
        return sum(process.command.startswith("sleep 3003") for process in processes(place)) == many

    wait_for("it sleeps", sleeping)
    # The next master ends what is left 2 seconds after it began; to look at that takes longer where much else runs.
    send(place, signal.SIGSTOP, "runner")
    kill(place, "am", "task")
    assert sleeping()
    send(place, signal.SIGCONT, "runner")
    seen = wait_for("the end", lambda: (now := status(command, first))["final_status"] == "FAILED" and now)
    message = "container 0 (worker 0) failed: the task was killed, or ended without a result, under an earlier attempt"
    assert seen["diagnostics"] == message
    end = wait_for("the next one's end", lambda: (now := status(command, second))["state"] == "FINISHED" and now)
    assert end["final_status"] == "SUCCEEDED"
    wait_for("no process", lambda: not processes(place))


@pytest.mark.slow
def test_dlapp_kill_ends_a_payload_without_guardians(place: Path, command: Run) -> None:
    application = launch(command, properties(place, "sleep 3003", name="left"))
    running(command, application)
    kill(place, "runner", "am", "task")
    done = command("dlapp-kill", application)
    assert done.code == 0, done.err
    assert status(command, application)["state"] == "KILLED"
    wait_for("no process", lambda: not processes(place))
