"""Running dlapp's commands where nothing of it stays: for the benches that need whole applications."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMANDS = Path(sys.executable).parent
DEADLINE_S = 120.0


@contextmanager
def own_state() -> Iterator[tuple[Path, dict[str, str]]]:
    """A throw-away directory, and an environment in which dlapp keeps everything there."""
    with tempfile.TemporaryDirectory(prefix="dlapp-bench-") as name:
        root = Path(name)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("DLAPP_", "XDG_"))}
        environment |= {
            "HOME": str(root),
            "PATH": os.pathsep.join([str(COMMANDS), environment.get("PATH", os.defpath)]),
            "DLAPP_LOCAL_STATE_DIR": str(root / "state"),
            "DLAPP_GPUID_LOCK_DIR": str(root / "gpus"),
            # The four containers of digits run at once, however small the machine.
            "DLAPP_LOCAL_VCORES": str(max(4, os.cpu_count() or 1)),
        }
        yield root, environment
        # What runs in it ends before it goes: the runner leaves by itself once nothing is left to do.
        wait_until_nothing_runs_in(root)


def wait_until_nothing_runs_in(root: Path) -> None:
    """Wait for processes with ``root`` in their command line to end."""
    deadline = time.monotonic() + DEADLINE_S
    needle = os.fsencode(str(root))
    while time.monotonic() < deadline:
        running = False
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    running |= needle in Path("/proc", name, "cmdline").read_bytes()
                except OSError:
                    continue
        if not running:
            return
        time.sleep(0.05)


def command(environment: dict[str, str], name: str, *args: str) -> str:
    """Run a command of ours to its end; its output.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run(
        [str(COMMANDS / name), *args], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise SystemExit(f"Error: {name} {' '.join(args)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def whole_process_s(environment: dict[str, str], argv: list[str]) -> float:
    """Seconds from the start of a process to its end.

    Raises:
        SystemExit: it failed, so its time means nothing.
    """
    began = time.perf_counter()
    code = subprocess.call(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    taken = time.perf_counter() - began
    if code:
        raise SystemExit(f"Error: {' '.join(argv)} ended with {code}")
    return taken
