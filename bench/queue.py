"""Commands that look at waiting and at many applications.

why          dlapp-why of an application that waits, a whole process, against dlapp-status of the same one
list-1000    dlapp-list of 1,000 applications, a whole process; the ratio is its time [s], and cpu_s what it computes

Both on one machine, in a state directory that is thrown away. The 1,000 applications have ended; their rows and views
are those of one that ran, under other ids.
"""

from __future__ import annotations

import json
import resource
import shutil
import sqlite3
import statistics
from contextlib import closing
from pathlib import Path

from bench import Row, alternately, median_ratio
from bench._throwaway import COMMANDS, command, own_state, wait_until_nothing_runs_in, whole_process_s

ROUNDS = 21
APPLICATIONS = 1000


def rows() -> list[Row]:
    """Measure both."""
    with own_state() as (root, environment):
        return [why(root, environment), list_1000(root, environment)]


def why(root: Path, environment: dict[str, str]) -> Row:
    """A whole dlapp-why against a whole dlapp-status, of an application behind one that has all memory."""
    file = _application(root, "sleep 600")
    large = environment | {"DLAPP_LOCAL_MEMORY": "1g"}
    first = _submitted(large, file, "1g")
    waiting = _submitted(large, file, "512m")
    status, explained = alternately(
        [
            lambda: whole_process_s(large, [str(COMMANDS / "dlapp-status"), waiting]),
            lambda: whole_process_s(large, [str(COMMANDS / "dlapp-why"), waiting]),
        ],
        ROUNDS,
    )
    command(large, "dlapp-kill", waiting)
    command(large, "dlapp-kill", first)
    return Row(
        name="why",
        ratio=median_ratio(explained, status),
        goal=1.3,
        better="lower",
        conditions={
            "ms": 1000 * statistics.median(explained),
            "status_ms": 1000 * statistics.median(status),
            "runs": ROUNDS,
        },
    )


def list_1000(root: Path, environment: dict[str, str]) -> Row:
    """A whole dlapp-list that shows 1,000 applications."""
    own = environment | {"DLAPP_LOCAL_STATE_DIR": str(root / "many")}
    command(own, "dlapp-launcher", "--wait", str(_application(root, "true")))
    _multiply(root / "many", APPLICATIONS)
    argv = [str(COMMANDS / "dlapp-list"), "-n", str(APPLICATIONS)]
    shown = len(command(own, "dlapp-list", *argv[1:]).splitlines()) - 1
    if shown != APPLICATIONS:
        raise SystemExit(f"Error: dlapp-list shows {shown} applications, not {APPLICATIONS}")
    before = _children_s()
    times = [whole_process_s(own, argv) for _ in range(ROUNDS)]
    cpu_s = (_children_s() - before) / ROUNDS
    return Row(
        name="list-1000",
        ratio=statistics.median(times),
        goal=0.3,
        better="lower",
        conditions={"unit": "s", "cpu_s": cpu_s, "applications": APPLICATIONS, "runs": ROUNDS},
    )


def _children_s() -> float:
    """Return the processor time of all processes that were waited for [s]."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _application(root: Path, script: str) -> Path:
    workspace = root / f"workspace-{len(script)}"
    workspace.mkdir(exist_ok=True)
    (workspace / "run.sh").write_text(f"#!/bin/sh\nexec {script}\n")
    (workspace / "run.sh").chmod(0o755)
    file = root / f"app-{len(script)}.properties"
    file.write_text(
        f"[application]\nappname=bench\nuser_dev_workspace_path={workspace}\nuser_shell_script=run.sh\n"
        "[resources]\nmemory=64m\ngcores=0\n"
    )
    return file


def _submitted(environment: dict[str, str], file: Path, memory: str) -> str:
    printed = command(environment, "dlapp-launcher", "--set", f"resources.memory={memory}", str(file))
    return next(line.split()[-1] for line in printed.splitlines() if line.startswith("DL App ID = "))


def _multiply(state: Path, count: int) -> None:
    """Give the one application of a state directory as many others as make ``count``, all alike."""
    wait_until_nothing_runs_in(state.parent)  # its runner leaves by itself
    home = next(one.parent for one in state.glob("*/dlapp.db"))
    with closing(sqlite3.connect(home / "dlapp.db")) as database:
        found = database.execute("SELECT * FROM applications")
        row = dict(zip([one[0] for one in found.description], found.fetchone(), strict=True))
        names = [name for name in row if name != "number"]
        marks = ", ".join("?" * len(names))
        for number in range(2, count + 1):
            application_id = f"{row['id'].rpartition('_')[0]}_{number:04d}"
            summary = json.loads(row["summary"] or "{}") | {"application_id": application_id}
            values = row | {"id": application_id, "summary": json.dumps(summary)}
            database.execute(
                f"INSERT INTO applications ({', '.join(names)}) VALUES ({marks})", [values[name] for name in names]
            )
            shutil.copytree(home / "applications" / row["id"], home / "applications" / application_id)
        database.commit()
