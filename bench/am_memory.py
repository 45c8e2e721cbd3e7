"""Resident memory of an ApplicationMaster with 200 containers, over that of an empty Python process.

The containers run ``sleep``; their tasks are processes of their own and do not count. Both figures are VmRSS of
/proc/<pid>/status, the empty process's at the end of ``python3 -I -c pass``, as the AM is started with ``-I`` too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench import Row
from bench._throwaway import DEADLINE_S, command, own_state

CONTAINERS = 200
PROPERTIES = """
[application]
appname=am-memory
user_dev_workspace_path=./workspace
user_shell_script=sleep.sh

[resources]
containers={containers}
memory=1
vcores=1
gcores=0
"""


def rows() -> list[Row]:
    """Start the containers, wait until all payloads run, look."""
    with own_state() as (root, environment):
        environment |= {"DLAPP_LOCAL_VCORES": str(2 * CONTAINERS), "DLAPP_LOCAL_MEMORY": "1g"}
        workspace = root / "workspace"
        workspace.mkdir()
        (workspace / "sleep.sh").write_text("#!/bin/sh\nexec sleep 1000\n")
        (workspace / "sleep.sh").chmod(0o755)
        properties = root / "dl_app.properties"
        properties.write_text(PROPERTIES.format(containers=CONTAINERS))
        began = time.monotonic()
        printed = command(environment, "dlapp-launcher", str(properties))
        application = next(word for word in printed.split() if word.startswith("application_"))
        home = next(Path(environment["DLAPP_LOCAL_STATE_DIR"]).glob(f"*/applications/{application}"))
        wait_until_running(home / "view.json")
        took_s = time.monotonic() - began
        am_kib = resident_kib(json.loads((home / "am.json").read_text())["pid"])
        command(environment, "dlapp-kill", application)
    empty_kib = empty_python_kib()
    return [
        Row(
            name="am-memory",
            ratio=am_kib / empty_kib,
            goal=6.0,
            better="lower",
            conditions={
                "containers": CONTAINERS,
                "am_mib": am_kib / 1024,
                "empty_python_mib": empty_kib / 1024,
                "until_all_ran_s": took_s,
            },
        )
    ]


def wait_until_running(view: Path) -> None:
    """Wait until the view says that all containers' payloads run.

    Raises:
        SystemExit: they do not, in time.
    """
    deadline = time.monotonic() + DEADLINE_S
    phases: list[str] = []
    while time.monotonic() < deadline:
        if view.exists():
            phases = [one["phase"] for one in json.loads(view.read_text())["containers"]]
            if phases.count("running") == CONTAINERS:
                return
        time.sleep(0.1)
    raise SystemExit(f"Error: after {DEADLINE_S:g} s {phases.count('running')} of {CONTAINERS} containers ran")


def resident_kib(pid: int) -> int:
    """VmRSS of a process [KiB]."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))


def empty_python_kib() -> int:
    """VmRSS of an empty Python process when it is about to end [KiB]; it reads the figure itself, by system calls."""
    code = "import posix; f = posix.open('/proc/self/status', 0); posix.write(1, posix.read(f, 4096))"
    status = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


if __name__ == "__main__":
    for row in rows():
        print(row.name, f"{row.ratio:.2f}", row.conditions)
