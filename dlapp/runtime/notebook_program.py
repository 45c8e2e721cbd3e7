"""JupyterLab in the container of a notebook: the program `dlapp_notebook.py` there, which dlapp-notebook submits.

It needs only Python's standard library (3.8 or later), and JupyterLab. It starts JupyterLab on the container's loopback
interface, reports its port when it answers, waits for its end, and copies new and changed files to one directory, which
is the application's output. SIGTERM ends JupyterLab. The token is in JUPYTER_TOKEN.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence

NO_JUPYTER = 3
PORT, PORTS = 8888, 200
SKIPPED = {".git", ".ipynb_checkpoints", ".venv", "__pycache__", "node_modules"}
_LOOK_S = 0.1
_ANSWER_S = 10.0
_END_SHARE = 0.6


def main() -> int:
    """Run JupyterLab to its end. Return the exit code."""
    options = _options()
    workspace = os.getcwd()
    if importlib.util.find_spec("jupyterlab") is None:
        print(
            f"dlapp-notebook: there is no JupyterLab for {sys.executable} here: pip install jupyterlab, in the image "
            "or for the Python that is first on PATH",
            file=sys.stderr,
        )
        return NO_JUPYTER
    before = list_files(workspace, options.without)
    run_dir = os.path.join(os.environ["TMPDIR"], "jupyter")
    os.makedirs(run_dir, 0o700, exist_ok=True)
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *_settings(workspace, options.idle, options.ip)],
        cwd=run_dir,
        env={**os.environ, "JUPYTER_RUNTIME_DIR": run_dir},
    )
    end = _End(server, options.grace)
    signal.signal(signal.SIGTERM, end.begin)
    try:
        if wait_until_it_answers(server, run_dir):
            report(ready=True, metrics={"port": _port(run_dir, server.pid)})
        end.wait()
    finally:
        saved = save(workspace, before, options.save, options.without)
        print(f"dlapp-notebook: {saved} new or changed files", file=sys.stderr)
    return 0 if end.asked else server.returncode


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("dlapp_notebook")
    parser.add_argument("--idle", type=int, required=True, help="seconds")
    parser.add_argument("--grace", type=float, required=True, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--save", required=True, help="directory that takes new and changed files")
    parser.add_argument("--ip", default="127.0.0.1", help="address on which JupyterLab listens")
    parser.add_argument("--without", action="append", default=[], help="directory of input")
    return parser.parse_args()


def _settings(workspace: str, idle_s: int, ip: str) -> list[str]:
    """Return JupyterLab's options: its token is in the environment.

    Source: jupyter_server, `ServerApp`, `MappingKernelManager` and `TerminalManager`; a kernel that computes or has an
    open page is not idle, and the server ends when it has no kernel and got no request for this time.
    """
    look_s = min(60, max(1, idle_s // 4))
    return [
        "--no-browser",
        f"--ServerApp.ip={ip}",
        f"--ServerApp.port={PORT}",
        f"--ServerApp.port_retries={PORTS}",
        f"--ServerApp.root_dir={workspace}",
        "--ServerApp.allow_root=True",
        f"--ServerApp.shutdown_no_activity_timeout={idle_s}",
        f"--MappingKernelManager.cull_idle_timeout={idle_s}",
        f"--MappingKernelManager.cull_interval={look_s}",
        "--MappingKernelManager.cull_connected=False",
        "--MappingKernelManager.cull_busy=False",
        f"--TerminalManager.cull_inactive_timeout={idle_s}",
        f"--TerminalManager.cull_interval={look_s}",
    ]


class _End:
    """The end of JupyterLab: by itself, or on request."""

    def __init__(self, server: subprocess.Popen[bytes], grace_s: float) -> None:
        self.server, self.grace_s = server, grace_s
        self.asked = False
        self.until: float | None = None

    def begin(self, *_: object) -> None:
        """End it; it ends its kernels. Some of the grace time is reserved for saving files."""
        self.asked = True
        if self.until is None:
            self.until = time.monotonic() + self.grace_s * _END_SHARE
            self.server.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until it has ended."""
        while True:
            try:
                self.server.wait(_LOOK_S)
                return
            except subprocess.TimeoutExpired:
                if self.until is not None and time.monotonic() >= self.until:
                    self.server.kill()


def _port(run_dir: str, pid: int) -> int | None:
    """Return the port that JupyterLab has chosen; None before that."""
    try:
        with open(os.path.join(run_dir, f"jpserver-{pid}.json"), encoding="utf-8") as file:
            return int(json.load(file)["port"])
    except (OSError, ValueError, KeyError):
        return None


def wait_until_it_answers(server: subprocess.Popen[bytes], run_dir: str) -> bool:
    """Return True when JupyterLab answers, False when it has ended."""
    while server.poll() is None:
        port = _port(run_dir, server.pid)
        if port is not None:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/api/status",
                headers={"Authorization": "token " + os.environ["JUPYTER_TOKEN"]},
            )
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                with opener.open(request, timeout=_ANSWER_S):
                    return True
            except (OSError, ValueError):
                pass  # not yet
        time.sleep(_LOOK_S)
    return False


def report(**values: object) -> None:
    """Append a line to the report of this container."""
    with open(os.environ["DLAPP_REPORT"], "a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def list_files(workspace: str, without: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Return path -> facts that change with the content, for the regular files of a workspace."""
    found = {}
    left_out = {os.path.normpath(os.path.join(workspace, path)) for path in without}
    for directory, names, files in os.walk(workspace):
        names[:] = [one for one in names if one not in SKIPPED and os.path.join(directory, one) not in left_out]
        for name in files:
            path = os.path.join(directory, name)
            try:
                info = os.lstat(path)
            except OSError:
                continue  # it was removed meanwhile
            if stat.S_ISREG(info.st_mode) and path not in left_out:
                found[os.path.relpath(path, workspace)] = info.st_size, info.st_mtime_ns, info.st_ino
    return found


def save(workspace: str, before: Mapping[str, object], into: str, without: Sequence[str]) -> int:
    """Link or copy new and changed files to a directory, and return their number.

    Args:
        workspace: its path.
        before: result of `list_files` at the start.
        into: the directory, relative to the workspace.
        without: paths in the workspace to skip.
    """
    target = os.path.join(workspace, into)
    os.makedirs(target, exist_ok=True)
    count = 0
    for path, facts in sorted(list_files(workspace, [*without, into]).items()):
        if before.get(path) == facts:
            continue
        place = os.path.join(target, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        source = os.path.join(workspace, path)
        try:
            os.link(source, place, follow_symlinks=False)
        except OSError:
            shutil.copy2(source, place, follow_symlinks=False)
        count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
