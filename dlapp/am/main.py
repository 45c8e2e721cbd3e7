"""The ApplicationMaster's process: ``python -I -S dlapp/__main__.py am --engine local --home DIR --attempt N ...``.

On YARN it is ``am --engine yarn``, and learns all else from its container (`dlapp.am.yarn_main`).

Its standard output and error are ``am.log``; a traceback there is a fault of ours, and the engine shows its last line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

from dlapp.am.application_dir.local import LocalApplicationDir
from dlapp.am.loop import Item, Loop
from dlapp.errors import Unreachable, UsageError
from dlapp.system.logs import log
from dlapp.system.processes.loading import loading
from dlapp.values.ids import ApplicationId

if TYPE_CHECKING:
    from dlapp.cluster.local.am_engine import LocalAmEngine

CRASH_SETTLEMENT_PATIENCE_S = 300.0
"""How long a crash settlement waits for an HDFS that does not answer; the runner starts some of them in turn, and other
applications of its queue wait for that."""


def main(argv: Sequence[str]) -> int:
    """Run one attempt of one application, or settle what a dead attempt left (``--aftermath``)."""
    if list(argv) == ["--engine", "yarn"]:
        with loading():
            from dlapp.am.yarn_main import run
        run()
        return 0
    if argv[:1] == ["--spare-fd"]:
        return _run_standby(int(argv[1]))
    options = _options(argv)
    application_id = ApplicationId.from_text(os.path.basename(os.path.normpath(options["home"])))
    attempt = int(options["attempt"])
    wakes: SimpleQueue[Item] = SimpleQueue()
    engine = _engine(options, attempt, wakes)
    app_dir = _application_dir(options["home"], engine, is_crash_settlement="aftermath" in options)
    if "aftermath" in options:
        from dlapp.am.crash_settlement import settle_crashed

        try:
            settle_crashed(app_dir, application_id, attempt, engine, engine.ended_ms(), engine.why_it_died())
        except Unreachable as error:
            log.error(str(error))  # the next one tries it again
            return 1
        return 0
    secrets, sender = app_dir.secrets(), None
    if secrets.notify is not None:
        from dlapp.notifications.local_outbox import LocalOutbox
        from dlapp.notifications.sender import Sender

        sender = Sender(secrets.notify, LocalOutbox(options["home"]))
    loop = Loop(
        app_dir=app_dir,
        submission=app_dir.submission(),
        secrets=secrets,
        application_id=application_id,
        attempt=attempt,
        engine=engine,
        wakes=wakes,
        sender=sender,
    )
    loop.run()
    return 0


def _run_standby(fd: int) -> int:
    """Wait as a standby until an application is assigned, with all modules loaded."""
    # What is imported late where it is needed, and would be at each start on this engine.
    with loading():
        from dlapp.cluster.local import am_engine  # noqa: F401
        from dlapp.cluster.local.runner.prefork import wait_for_assignment

    argv = wait_for_assignment(fd)
    return 0 if argv is None else main(argv)


def _engine(options: dict[str, str], attempt: int, wakes: SimpleQueue[Item]) -> LocalAmEngine:
    if options["engine"] != "local":
        raise UsageError(f"--engine {options['engine']}: there are local and yarn")
    from dlapp.cluster.local.am_engine import LocalAmEngine
    from dlapp.system.files import check_own_directory

    check_own_directory(options["home"])  # commands in it are executed
    holds = tuple(int(fd) for fd in options.get("hold-fds", "").split(",") if fd)
    return LocalAmEngine(
        options["home"],
        attempt,
        int(options["alive-fd"]),
        holds,
        lambda: wakes.put(None),
        is_crash_settlement="aftermath" in options,
    )


def _application_dir(directory: str, engine: LocalAmEngine, *, is_crash_settlement: bool) -> LocalApplicationDir:
    if engine.hdfs is None:
        return LocalApplicationDir(directory)
    from dlapp.values.spec import DEFAULT_OUTPUT_PATIENCE_S

    patience_s = CRASH_SETTLEMENT_PATIENCE_S if is_crash_settlement else DEFAULT_OUTPUT_PATIENCE_S
    return LocalApplicationDir(directory, engine.hdfs, patience_s)


def _options(argv: Sequence[str]) -> dict[str, str]:
    # argparse would cost 7 ms of every application's start for four words that only we write.
    options: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        name = word.removeprefix("--")
        options[name] = "" if name == "aftermath" else next(words, "")
    for name in ("engine", "home", "attempt", "alive-fd"):
        if not options.get(name):
            raise UsageError(f"am: --{name} is missing; this process is started by dlapp itself")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
