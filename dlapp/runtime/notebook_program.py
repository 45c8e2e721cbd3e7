"""JupyterLab in the container of a notebook: the program `dlapp_notebook.py` there, which dlapp-notebook submits.

It needs only Python's standard library (3.8 or later), and JupyterLab. It starts JupyterLab on the container's loopback
interface, reports its port when it answers, waits for its end, and copies new and changed files to one directory, which
is the application's output. SIGTERM ends JupyterLab. The token is in JUPYTER_TOKEN.

JupyterLab also reads the user's configuration (``~/.jupyter``). Options of the command line take precedence over it. So
do the directories of JUPYTER_CONFIG_PATH, where the token is: other users can read command lines.
"""

from __future__ import annotations

import argparse
import http.client
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
NO_ANSWER = 4
PORT, PORTS = 8888, 200
SKIPPED = {".git", ".ipynb_checkpoints", ".venv", "__pycache__", "node_modules"}
_LOOK_S = 0.1
_LONGEST_LOOK_S = 2.0
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
        env={**os.environ, "JUPYTER_RUNTIME_DIR": run_dir, "JUPYTER_CONFIG_PATH": _write_identity(run_dir)},
    )
    end = _End(server, options.grace)
    signal.signal(signal.SIGTERM, end.begin)
    try:
        problem = wait_until_it_answers(server, run_dir, options.answer_within)
        if problem:
            print(f"dlapp-notebook: {problem}; see the configuration in ~/.jupyter", file=sys.stderr)
            end.begin()
        elif server.poll() is None:
            report(ready=True, metrics={"port": _port(run_dir, server.pid)})
        end.wait()
    finally:
        saved = save(workspace, before, options.save, options.without)
        print(f"dlapp-notebook: {saved} new or changed files", file=sys.stderr)
    if problem:
        return NO_ANSWER
    return 0 if end.asked else server.returncode


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("dlapp_notebook")
    parser.add_argument("--idle", type=int, required=True, help="seconds")
    parser.add_argument("--grace", type=float, required=True, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--save", required=True, help="directory that takes new and changed files")
    parser.add_argument("--ip", default="127.0.0.1", help="address on which JupyterLab listens")
    parser.add_argument("--answer-within", type=float, default=60.0, help="seconds from its start to listen")
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
        *(f"--ServerApp.{name}=" for name in ("certfile", "keyfile", "client_ca", "sock", "websocket_url")),
        "--ServerApp.base_url=/",
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


def _write_identity(run_dir: str) -> str:
    """Write configuration files with the token, without a password, and return the value of JUPYTER_CONFIG_PATH.

    Source: jupyter_core, `jupyter_config_path`: its directories precede the user's; jupyter_server, `auth.identity`.
    """
    identity = {"token": os.environ["JUPYTER_TOKEN"], "hashed_password": "", "password_required": False}
    server = {
        "identity_provider_class": "jupyter_server.auth.identity.PasswordIdentityProvider",
        "token": identity["token"],  # of jupyter_server 1
        "password": "",
        "password_required": False,
    }
    settings = {"ServerApp": server, "IdentityProvider": identity, "PasswordIdentityProvider": identity}
    directory = os.path.join(run_dir, "config")
    os.makedirs(directory, 0o700, exist_ok=True)
    for name in ("jupyter_config", "jupyter_server_config", "jupyter_notebook_config", "jupyter_lab_config"):
        path = os.path.join(directory, f"{name}.json")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(settings, file)
    return os.pathsep.join(filter(None, (directory, os.environ.get("JUPYTER_CONFIG_PATH"))))


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


def wait_until_it_answers(server: subprocess.Popen[bytes], run_dir: str, limit_s: float) -> str:
    """Wait until JupyterLab answers or ends, and return an empty text; return the problem if it answers wrongly.

    Args:
        server: its process.
        run_dir: the directory in which it writes its port.
        limit_s: time limit from its first wrong answer.
    """
    until, pause_s = None, _LOOK_S
    while server.poll() is None:
        port = _port(run_dir, server.pid)
        if port is not None:
            url = f"http://127.0.0.1:{port}/api/status"
            if not (problem := _problem_at(url)):
                return ""
            until = time.monotonic() + limit_s if until is None else until
            if time.monotonic() >= until:
                return f"JupyterLab listens, but GET {url} has failed for {limit_s:g} s: {problem}"
            pause_s = min(pause_s * 1.5, _LONGEST_LOOK_S)
        time.sleep(pause_s)
    return ""


def _problem_at(url: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": "token " + os.environ["JUPYTER_TOKEN"]})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_ANSWER_S):
            return ""
    except http.client.HTTPException:
        return "no HTTP response, perhaps it speaks TLS"
    except (OSError, ValueError) as error:
        return str(error)


def report(**values: object) -> None:
    """Append a line to the report of this container."""
    with open(os.environ["DLAPP_REPORT"], "a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def list_files(workspace: str, without: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Return path -> facts that change with the content, for the regular files of a workspace."""
    found = {}
    left_out = {os.path.normpath(os.path.join(workspace, path)) for path in without}
    todo = [workspace]  # os.walk calls itself for each level
    while todo:
        directory = todo.pop()
        try:
            names = os.listdir(directory)
        except OSError:
            continue  # it was removed meanwhile, or cannot be read
        for name in names:
            path = os.path.join(directory, name)
            try:
                info = os.lstat(path)
            except OSError:
                continue
            if path in left_out:
                continue
            if stat.S_ISDIR(info.st_mode) and name not in SKIPPED:
                todo.append(path)
            elif stat.S_ISREG(info.st_mode):
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
