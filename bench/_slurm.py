"""A controller of Slurm for a bench: slurmctld and munged of Debian's slurm-wlm, without nodes and without systemd."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.install import SEARCH, install

PROGRAMS = ("slurmctld", "sbatch", "sinfo", "munged")
PACKAGES = ["slurm-wlm", "munge"]
START_S = 60.0


def lacking() -> str:
    """Install what is needed; the line that says what is not there all the same, or an empty text."""
    if any(shutil.which(one, path=SEARCH) is None for one in PROGRAMS):
        install(PACKAGES)
    absent = [one for one in PROGRAMS if shutil.which(one, path=SEARCH) is None]
    return f"no {', '.join(absent)}; as root: apt-get install {' '.join(PACKAGES)}" if absent else ""


@contextmanager
def controller(root: Path) -> Iterator[dict[str, str]]:
    """Run a controller whose files are all in a directory.

    Yields:
        The environment in which sbatch finds it.
    """
    root.mkdir()
    root.chmod(0o755)
    key, munge_socket, config = root / "munge.key", root / "munge.socket", root / "slurm.conf"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    (root / "state").mkdir()
    config.write_text(_configuration(root, munge_socket))
    environment = {**os.environ, "PATH": SEARCH, "SLURM_CONF": str(config)}
    munge = ["munged", "--foreground", f"--key-file={key}", f"--socket={munge_socket}", "--force"]
    munge += [f"--{name}={root / f'munge.{name}'}" for name in ("pid-file", "log-file", "seed-file")]
    with open(root / "programs.log", "wb") as log:
        processes = [subprocess.Popen(munge, env=environment, stdout=log, stderr=log)]
        try:
            _wait(munge_socket.exists, "munged", root)
            processes.append(subprocess.Popen(["slurmctld", "-D", "-c"], env=environment, stdout=log, stderr=log))
            answers = lambda: subprocess.run(["sinfo"], env=environment, capture_output=True).returncode == 0  # noqa: E731
            _wait(answers, "slurmctld", root)
            yield environment
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in reversed(processes):
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _configuration(root: Path, munge_socket: Path) -> str:
    user = "root" if os.geteuid() == 0 else os.environ.get("USER", "root")
    values = {
        "ClusterName": "bench",
        "SlurmctldHost": f"{socket.gethostname()}(127.0.0.1)",
        "SlurmctldPort": _free_port(),
        "SlurmUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={munge_socket}",
        "CredType": "cred/munge",
        "StateSaveLocation": root / "state",
        "SlurmctldPidFile": root / "slurmctld.pid",
        "SlurmctldLogFile": root / "slurmctld.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SchedulerType": "sched/backfill",
        "SelectType": "select/cons_tres",
        "ReturnToService": 0,
    }
    lines = [f"{name}={value}" for name, value in values.items()]
    # A node that nobody serves: jobs wait.
    lines += ["NodeName=nobody CPUs=64 RealMemory=65536 State=UNKNOWN"]
    lines += ["PartitionName=main Nodes=nobody Default=YES MaxTime=INFINITE State=UP"]
    return "\n".join(lines) + "\n"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


def _wait(condition: object, what: str, root: Path) -> None:
    assert callable(condition)
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() >= deadline:
            logs = "".join(path.read_text(errors="replace")[-2000:] for path in sorted(root.glob("*log*")))
            raise SystemExit(f"Error: {what} did not start in {START_S:g} s\n{logs}")
        time.sleep(0.05)
