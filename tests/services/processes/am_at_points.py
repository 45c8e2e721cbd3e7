"""A program in place of dlapp's own whose ApplicationMaster, or a task, can be killed or stopped at a point of its run.

``install(directory, ...)`` writes a script to be used as ``yarn.python``, where a NodeManager runs it in the place of
Python, or as the program of the embedded engine. It runs dlapp as these would, and in an ApplicationMaster notes each
point as it is passed, in ``points-<attempt>``:

    before|after StartTask, Assign, Journal result ..    the actions of the loop, journal records by their kind
    before|after register, keep, finish, remove           the calls at both ends
    before|after claim                                     the write of the commit claim
    commit <step>                                          each step of the commit

A task has the points ``task <index> <phase>``: it has reported the phase, and its ApplicationMaster has it. They are
not noted. The first task of an application that passes the one that was chosen dies there.

At the one that was chosen it dies by SIGKILL, or stops while its container is killed: then it lives on outside of YARN,
as one does that was cut off. Or it stays there, as long as there is the file ``hold-1``. An attempt for which there is
a file ``cut-<attempt>`` reaches no ResourceManager, and one for which there is a file ``hold-<attempt>`` stays at its
next point.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

KILL, STOP, HOLD = "kill", "stop", "hold"
HASTY_RECOVERY_MS = 20_000


def install(
    directory: Path,
    point: str = "",
    *,
    nth: int = 1,
    do: str = KILL,
    outlives: bool = False,
    hasty: bool = False,
    environment: Mapping[str, str] | None = None,
    others_wait_for: int = 0,
    patient: bool = False,
) -> Path:
    """Write the script; its path.

    Args:
        directory: for the script and what it notes, the application's own.
        point: where the first attempt is harmed, when it passes there for the ``nth`` time; empty: nowhere.
        do: `KILL`, or `STOP`: it is stopped (SIGSTOP), and its container killed, or `HOLD`: it waits there.
        outlives: its ApplicationMasters live on when their containers are killed.
        hasty: on a cluster tasks look for the next attempt every few seconds however long there is none, and it waits
            for them `HASTY_RECOVERY_MS`.
        environment: variables for all processes of the application.
        others_wait_for: the other tasks of an application do not unpack before so many of its tasks have begun.
        patient: on a cluster requests for GPUs wait for the ledger as long as it takes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    plan = {"point": point, "nth": nth, "do": do, "outlives": outlives or do == STOP, "hasty": hasty}
    plan |= {"others_wait_for": others_wait_for, "patient": patient}
    (directory / "plan.json").write_text(json.dumps(plan))
    script = directory / "python"
    exports = "".join(f"export {name}={shlex.quote(text)}\n" for name, text in (environment or {}).items())
    script.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} -I {__file__} {directory} "$@"\n')
    script.chmod(0o755)
    return script


def points(directory: Path, attempt: int = 1) -> list[str]:
    """The points that an attempt passed, in their order."""
    try:
        return (directory / f"points-{attempt}").read_text().splitlines()
    except FileNotFoundError:
        return []


class _Points:
    """Points that are passed in this process."""

    def __init__(self, directory: str, attempt: int, plan: dict[str, Any]) -> None:
        self.directory, self.attempt, self.plan = directory, attempt, plan
        self.passed: Counter[str] = Counter()
        self.file = os.open(f"{directory}/points-{attempt}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def passing(self, name: str) -> None:
        self.passed[name] += 1
        os.write(self.file, f"{name}\n".encode())
        is_point = self.attempt == 1 and name == self.plan["point"] and self.passed[name] == self.plan["nth"]
        if is_point and self.plan["do"] == HOLD:
            Path(f"{self.directory}/hold-1").touch()
        while os.path.exists(f"{self.directory}/hold-{self.attempt}"):
            time.sleep(0.01)
        if not is_point or self.plan["do"] == HOLD:
            return
        if self.plan["do"] == STOP:
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, method: str, name: str | Callable[..., str | None]) -> None:
        """Note a method's beginning and end; ``name`` may look at its arguments, and say None."""
        real = getattr(owner, method)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            point = name if isinstance(name, str) else name(*args, **kwargs)
            if point is None:
                return real(*args, **kwargs)
            self.passing(f"before {point}")
            answer = real(*args, **kwargs)
            self.passing(f"after {point}")
            return answer

        setattr(owner, method, wrapped)

    @property
    def cut_off(self) -> bool:
        return os.path.exists(f"{self.directory}/cut-{self.attempt}")


def _note_actions(one: _Points) -> None:
    from dlapp.am.loop import Loop

    def action(_loop: Loop, what: Any) -> str:
        name = type(what).__name__
        return f"Journal {what.record['kind']}" if name == "WriteJournal" else name

    one.around(Loop, "_execute", action)


def _note_commit(one: _Points) -> None:
    from dlapp.storage import commit as commit_module

    real_commit = commit_module.commit

    def commit(*args: Any, **kwargs: Any) -> Any:
        return real_commit(*args, **kwargs, step=lambda step: one.passing(f"commit {step}"))

    commit_module.commit = commit


def _arrange_task(plan: dict[str, Any], directory: str, container: str) -> None:
    """Kill this task at its point, if it is the first of its application to pass there.

    Args:
        plan: what `install` wrote.
        directory: where that is.
        container: the id of its container.
    """
    from dlapp.task.link.am_link import AmLink
    from dlapp.values.ids import ContainerId
    from dlapp.values.messages import Phase, Stop

    begun = Path(directory, f"tasks-{ContainerId.from_text(container).application}")
    begun.mkdir(exist_ok=True)
    dead = begun.with_name(f"{begun.name}-killed-at-its-point")
    real_begin, real_say = AmLink.begin, AmLink.report_phase

    def passing(link: Any, phase: Phase) -> None:
        index = link._last.index
        if plan["point"] == f"task {index} {phase.value}":
            while link._unsent:
                time.sleep(0.002)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(dead, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        elif phase is Phase.UNPACKING and not plan["point"].startswith(f"task {index} "):
            while len(os.listdir(begun)) < plan["others_wait_for"] and link._stopper.wanted is Stop.NO:
                time.sleep(0.002)

    def begin(link: Any, *args: Any, **kwargs: Any) -> None:
        real_begin(link, *args, **kwargs)
        (begun / container).touch()
        passing(link, Phase.STARTING)

    def say(link: Any, phase: Phase, **details: Any) -> None:
        real_say(link, phase, **details)
        passing(link, phase)

    AmLink.begin, AmLink.report_phase = begin, say  # type: ignore[assignment, method-assign]


def _arrange_on_this_machine(one: _Points) -> None:
    from dlapp.am.application_dir.local import LocalApplicationDir
    from dlapp.cluster.local.am_engine import LocalAmEngine

    _note_actions(one)
    _note_commit(one)
    for name in ("register", "finish"):
        one.around(LocalAmEngine, name, name)
    one.around(LocalApplicationDir, "claim", "claim")


def _arrange(one: _Points) -> None:
    from dlapp.am.application_dir.hdfs import HdfsApplicationDir
    from dlapp.cluster.yarn.am import resource_manager
    from dlapp.cluster.yarn.am.engine import YarnAmEngine
    from dlapp.hadoop import connection, failover
    from dlapp.hadoop.errors import ConnectionLost
    from dlapp.storage.hdfs.staging import HdfsStagingFiles

    _note_actions(one)
    _note_commit(one)
    for name in ("register", "finish"):
        one.around(YarnAmEngine, name, name)
    for name in ("archive", "remove"):
        one.around(HdfsApplicationDir, name, name)
    one.around(
        HdfsStagingFiles, "write", lambda _files, place, *_, **__: "claim" if place.endswith("/commit.json") else None
    )

    class Cut(connection.Connection):
        """A connection that breaks when its attempt is cut off, and then cannot be made."""

        def __init__(self, address: tuple[str, int], protocol: str, **options: Any) -> None:
            self._to_rm = protocol == resource_manager.PROTOCOL
            if self._to_rm and one.cut_off:
                raise ConnectionLost(f"{address}: cut off by a test", sent=False)
            super().__init__(address, protocol, **options)

        def call(self, method: str, request: bytes, deadline: float, **options: Any) -> bytes:
            if self._to_rm and one.cut_off:
                self.close()
                raise ConnectionLost(f"{self.name}: cut off by a test", sent=True)
            return super().call(method, request, deadline, **options)

    failover.RpcClient.__init__.__globals__["Connection"] = Cut


def _hasten() -> None:
    from dlapp.am.model import state
    from dlapp.task.link import am_address
    from dlapp.value import replace

    am_address.OFTEN_FOR_S = 1e9
    defaults = state.ApplicationState.__init__.__kwdefaults__
    assert defaults is not None
    defaults["timing"] = replace(state.Timing(), recovery_ms=HASTY_RECOVERY_MS)


def main(directory: str, argv: list[str]) -> int:
    """Be ``python -I -S dlapp.pyz am|task ...``, or ``python -I -S dlapp/__main__.py am|task|runner ...`` without these
    words."""
    with open(f"{directory}/plan.json") as file:
        plan = json.load(file)
    if argv[0] != "-I":
        return _main_on_this_machine(directory, argv, plan)
    assert argv[:3] == ["-I", "-S", "dlapp.pyz"], argv
    argv = argv[3:]
    if argv[0] == "am" and plan["outlives"]:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.setsid()  # a NodeManager kills its container's session alone
    sys.path.insert(0, os.path.abspath("dlapp.pyz"))
    if plan["hasty"]:
        _hasten()
    if plan["patient"]:
        from dlapp.am import device_counts

        device_counts.WAIT_MS = 120_000
    if argv[0] == "am":
        attempt = int(os.environ["CONTAINER_ID"].split("_")[-2])
        with open(f"{directory}/pid-{attempt}", "w") as file:
            file.write(str(os.getpid()))
        _arrange(_Points(directory, attempt, plan))
    if argv[0] == "task" and plan["point"].startswith("task "):
        _arrange_task(plan, directory, os.environ["CONTAINER_ID"])
    from dlapp.__main__ import main as run

    return int(run(argv) or 0)


def _main_on_this_machine(directory: str, argv: list[str], plan: dict[str, Any]) -> int:
    if argv[0] == "am":
        if "--attempt" not in argv:
            return 0  # a spare one, which never gets its attempt in time
        _arrange_on_this_machine(_Points(directory, int(argv[argv.index("--attempt") + 1]), plan))
    if argv[0] == "task" and plan["point"].startswith("task "):
        _arrange_task(plan, directory, os.path.basename(argv[argv.index("--home") + 1]))
    from dlapp.__main__ import main as run

    return int(run(argv) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
