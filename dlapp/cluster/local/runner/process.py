"""The process of a runner: ``python -I -S dlapp/__main__.py runner --state DIR --lock-fd N --settings JSON ...``.

It loads in two steps. If a submission is about to come (``--stay``), the standby ApplicationMaster is started after the
first one, so that it loads while the runner does.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from typing import Any

from dlapp.cluster.local.runner.prefork import PreforkedMaster
from dlapp.cluster.local.settings import RunnerSettings
from dlapp.cluster.local.state import StateDir
from dlapp.errors import DlappError
from dlapp.system.logs import log
from dlapp.system.processes.caller import forget_caller
from dlapp.system.processes.loading import loading
from dlapp.system.processes.spawn import close_all_but

MAX_LOG_BYTES = 1 << 20


def main(argv: Sequence[str]) -> int:
    """Run as the runner, with the lock that the starting process acquired for it."""
    flags = ("--shared", "--stay")
    options: dict[str, Any] = {flag.removeprefix("--"): flag in argv for flag in flags}
    arguments = [text for text in argv if text not in flags]
    options.update(
        (name.removeprefix("--"), value) for name, value in zip(arguments[::2], arguments[1::2], strict=True)
    )
    os.chdir("/")
    os.umask(0o022)
    forget_caller()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    lock = int(options["lock-fd"])
    sign = int(options["sign-fd"]) if "sign-fd" in options else None
    kept = [lock] if sign is None else [lock, sign]
    close_all_but(kept)
    for fd in kept:
        os.set_inheritable(fd, False)
    state = StateDir(options["state"], shared=options["shared"])
    settings = RunnerSettings(json.loads(options["settings"]))
    if os.fstat(1).st_size > MAX_LOG_BYTES:
        os.ftruncate(1, 0)
    try:
        standby = _start_standby(state, settings) if options["stay"] else None
        with loading():
            from dlapp.cluster.local.runner.main import Runner
        Runner(state, settings, lock, sign=sign, stay=options["stay"], standby=standby).run()
    except (DlappError, OSError) as error:
        log.error(str(error))
        return 1
    return 0


def _start_standby(state: StateDir, settings: RunnerSettings) -> PreforkedMaster | None:
    try:
        return PreforkedMaster(settings.program, state.path, state.runner_log(os.geteuid()))
    except OSError as error:
        log.warning(f"no standby ApplicationMaster could be started: {error}")
        return None
