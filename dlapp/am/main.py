"""The ApplicationMaster's process: ``python -I -m dlapp am --engine local --home DIR --attempt N ...``.

On YARN it is ``am --engine yarn``, and learns all else from its container (`dlapp.am.on_yarn`).

Its standard output and error are ``am.log``; a traceback there is a fault of ours, and the engine shows its last line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

from dlapp.am.home import Home
from dlapp.am.loop import Item, Loop
from dlapp.errors import Unreachable, UsageError
from dlapp.ids import ApplicationId

if TYPE_CHECKING:
    from dlapp.cluster.local.am_side import LocalAmEngine

AFTERMATH_PATIENCE_S = 300.0
"""How long one that cleans up waits for an HDFS that does not answer; the runner starts some of them in turn, and the
others of its queue wait for that."""


def main(argv: Sequence[str]) -> int:
    """Run one attempt of one application, or settle what a dead attempt left (``--aftermath``)."""
    if list(argv) == ["--engine", "yarn"]:
        from dlapp.am.on_yarn import run

        return run()
    if argv[:1] == ["--spare-fd"]:
        return _be_spare(int(argv[1]))
    options = _options(argv)
    application_id = ApplicationId.from_text(os.path.basename(os.path.normpath(options["home"])))
    attempt = int(options["attempt"])
    wakes: SimpleQueue[Item] = SimpleQueue()
    engine = _engine(options, attempt, wakes)
    home = _home(options["home"], engine, is_aftermath="aftermath" in options)
    if "aftermath" in options:
        from dlapp.am.aftermath import settle_what_is_left

        try:
            settle_what_is_left(home, application_id, attempt, engine, engine.ended_ms(), engine.why_it_died())
        except Unreachable as error:
            print(error, flush=True)  # the next one tries it again
            return 1
        return 0
    loop = Loop(
        home=home,
        submission=home.submission(),
        secrets=home.secrets(),
        application_id=application_id,
        attempt=attempt,
        engine=engine,
        wakes=wakes,
    )
    loop.run()
    return 0


def _be_spare(fd: int) -> int:
    """Be loaded when an application comes."""
    # What is imported late where it is needed, and would be at each start on this engine.
    from dlapp.cluster.local import am_side  # noqa: F401
    from dlapp.cluster.local.spare import awaited

    argv = awaited(fd)
    return 0 if argv is None else main(argv)


def _engine(options: dict[str, str], attempt: int, wakes: SimpleQueue[Item]) -> LocalAmEngine:
    if options["engine"] != "local":
        raise UsageError(f"--engine {options['engine']}: there are local and yarn")
    from dlapp.cluster.local.am_side import LocalAmEngine

    holds = tuple(int(fd) for fd in options.get("hold-fds", "").split(",") if fd)
    return LocalAmEngine(options["home"], attempt, int(options["alive-fd"]), holds, lambda: wakes.put(None))


def _home(directory: str, engine: LocalAmEngine, *, is_aftermath: bool) -> Home:
    if engine.storage is None:
        return Home(directory)
    from dlapp.storage import OUTPUT_PATIENCE_S, HdfsPlace

    home = Home(directory, HdfsPlace.from_settings(engine.storage))
    home.patience_s = AFTERMATH_PATIENCE_S if is_aftermath else OUTPUT_PATIENCE_S
    return home


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
