"""State of the embedded engine as an attacker makes it: applications without processes, and rows that lie."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from pathlib import Path

from dlapp.cluster.local.client import other_users  # noqa: F401
from dlapp.cluster.local.client.engine import LocalEngine

# What is imported late: another user may not be able to read the interpreter of the tests.
from dlapp.cluster.local.client.submission import stage
from dlapp.cluster.local.queue import Queue
from dlapp.config import load_config
from dlapp.system import locks
from dlapp.system.processes import caller  # noqa: F401
from dlapp.values.serialization import to_json
from tests.services.processes.small_app import spec_of

CONTAINER = "container_{}_01_000002"
VIEW_OF_CONTAINER = {"role": "main", "role_index": 0, "index": 0, "phase": "ended", "exit_code": 0}


def engine_in(state: Path, *, shared: bool) -> LocalEngine:
    """An engine of whose process this is; it starts nothing."""
    options = {"local.state_dir": str(state), "local.shared": str(shared).lower(), "gpuid.lock_dir": f"{state}-gpus"}
    return LocalEngine(load_config(options, environ={}), program=("/bin/false",))


def make_application(engine: LocalEngine, state: str = "done", *, keep_alive: bool = False) -> str:
    """Make an application that was never started, as its owner; its id."""
    submission = {
        "spec": to_json(spec_of("finish")),
        "workspace_archive": "file:///nowhere",
        "workspace_digest": "sha256-00",
        "submitter": "x",
        "submitted_ms": 1,
    }
    staging = stage(engine.session, submission, {"control_secret": "00"}, None)
    outcome = {
        "state": "FINISHED",
        "final_status": "SUCCEEDED",
        "cause": "succeeded",
        "diagnostics": "",
        "finished_ms": 2,
    }
    with Queue(engine.state) as queue, queue.change():
        application = queue.insert(
            uid=os.geteuid(),
            submitter="x",
            username="x",
            appname="small",
            memory_mib=1,
            vcores=1,
            gcores=0,
            containers=1,
            archive="",
            submitted_ms=time.time_ns() // 1_000_000,
            state=state,
            outcome=json.dumps(outcome) if state == "done" else "",
        )
        home = Path(engine.state.application(application))
        os.rename(staging, home)
        container = CONTAINER.format(application.removeprefix("application_"))
        (home / "containers" / container).mkdir(mode=0o750)
        for name in ("stdout", "stderr", "dlapp.log"):
            (home / "containers" / container / name).write_text("printed\n")
        view = {
            "application_id": application,
            "attempt": 1,
            "state": "FINISHED",
            "containers": [{"container_id": container, **VIEW_OF_CONTAINER}],
        }
        files = {"view.json": view, "am.json": {"control_url": "http://127.0.0.1:9"}, "kill.json": {"by": "x"}}
        for name, value in {**files, "outcome.json": outcome}.items():
            (home / name).write_text(json.dumps(value))
        (home / "am.log").write_text("Traceback (most recent call last):\nE: x\n")
        (home / "died").write_text("5\n")
        (home / "am.pid").write_text("1 1\n")
    if keep_alive:
        fd = os.open(home / "alive", os.O_RDWR)
        locks.try_lock(fd)
        os.set_inheritable(fd, True)
    return application


def forge(top: Path, application: str, uid: int, home: Path | None, *, state: str = "waiting") -> None:
    """Write a row into every database below a directory that this process may write, and plant an application."""
    for path in list(top.rglob("dlapp.db")):
        with contextlib.suppress(sqlite3.Error, PermissionError), contextlib.closing(sqlite3.connect(path)) as rows:
            rows.execute("PRAGMA busy_timeout = 2000")
            rows.execute(
                "INSERT INTO applications (id, uid, state, submitter, username, appname, memory_mib, vcores, gcores,"
                " containers, archive, submitted_ms, finished_ms, outcome) VALUES (?, ?, ?, 'x', 'x', 'x', 1, 1, 0, 1,"
                " '', 1, ?, '{}')",
                (application, uid, state, 1 if state == "done" else None),
            )
            rows.commit()
            number = rows.execute("SELECT max(number) FROM applications").fetchone()[0]
            if home is not None:
                named = f"{application.rpartition('_')[0]}_{number:04d}"
                rows.execute("UPDATE applications SET id = ? WHERE number = ?", (named, number))
                rows.commit()
                os.system(f"cp -a {home} {path.parent}/applications/{named}")


def plant(engine: LocalEngine, proof: Path) -> Path:
    """Make the directory of an application whose program, if anybody starts it, writes a file that tells who did."""
    program = Path(engine.state.path) / "evil.sh"
    program.write_text(f"#!/bin/sh\nid -u >> {proof}\n")
    program.chmod(0o755)
    submission = {
        "spec": to_json(spec_of("finish")),
        "workspace_archive": "file:///nowhere",
        "workspace_digest": "sha256-00",
        "submitter": "x",
        "submitted_ms": 1,
    }
    home = Path(stage(engine.session, submission, {"control_secret": "00" * 16}, None))
    settings = json.loads((home / "engine.json").read_text())
    settings["settings"]["program"] = [str(program)]
    (home / "engine.json").write_text(json.dumps(settings))
    for directory in (home, home / "containers"):
        directory.chmod(0o777)
    for file in home.iterdir():
        if file.is_file():
            file.chmod(0o666)
    return home
