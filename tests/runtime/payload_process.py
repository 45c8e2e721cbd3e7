"""Runs one payload in the place of a task, for tests: ``python payload_process.py DESCRIPTION``.

It makes the payload ready, starts it, obeys words on its standard input (``soft``, ``kill``) and prints how it ended, a
JSON object a line.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any


def main(argv: list[str]) -> None:
    """Run the payload that the first argument describes."""
    from dlapp.runtime import guardian as guardians

    guardians.MOMENT_S = float(os.environ.get("MOMENT_S", guardians.MOMENT_S))
    forked = guardians.fork_guardian()
    from dlapp.node_policy import NodePolicy, node_policy
    from dlapp.runtime.docker import exit_status
    from dlapp.runtime.docker import payload as docker_payload
    from dlapp.runtime.payload import SOFT_STOP_EVERY_S, Payload, PayloadDevice, PayloadError, Running
    from dlapp.runtime.process import Guardian, PlainRun
    from dlapp.values.launch_spec import DockerSettings
    from dlapp.values.spec import Resources

    data = json.loads(Path(argv[0]).read_text())
    runtime = {name.removeprefix("docker_"): data.pop(name) for name in list(data) if name.startswith("docker_")}
    settings = DockerSettings(**{"host": "unix:///nowhere", "network": "none", **runtime})
    policy: NodePolicy = node_policy(data.pop("node_file", "/none"), owner=os.getuid())
    data["resources"] = Resources(**data.pop("resources", {"memory_mib": 64}))
    data["args"] = tuple(data["args"])
    data["gpus"] = tuple(PayloadDevice(*gpu) for gpu in data.get("gpus", ()))
    data["keep_fds"] = tuple(data.get("keep_fds", ()))
    start_env, peer_values = data.pop("start_env", {}), data.pop("peer_values", {})
    payload = Payload(**data)
    guardian = Guardian(*forked)
    # A dockerd on a busy machine is no dockerd that hangs.
    docker_payload._LOOK_TIMEOUT_S = exit_status.SETTLED_S = 120.0
    run: Running
    try:
        if payload.image is None:
            run = PlainRun(payload, guardian, note)
        else:
            run = made = docker_payload.DockerRun(payload, settings, policy.docker, note)
            made.prepare()
            report("made")
            if os.environ.get("STOP_BEFORE_START"):
                signal.pause()
        run.start(start_env, peer_values)
        report("started")
        ended, soft_again_s = None, math.inf
        while ended is None:
            if time.monotonic() >= soft_again_s:
                run.soft_stop()
                soft_again_s = time.monotonic() + SOFT_STOP_EVERY_S
            poll = select.poll()
            poll.register(0, select.POLLIN)
            for fd, events in run.watched_fds():
                poll.register(fd, events)
            for fd, _ in poll.poll(10):
                for word in os.read(0, 100).decode().split() if fd == 0 else ():
                    if word == "count":
                        report("counted", **run.counters()._asdict())
                    else:
                        {"soft": run.soft_stop, "kill": run.kill}[word]()
                        soft_again_s = time.monotonic() + SOFT_STOP_EVERY_S
            ended = run.ended()
        run.close()
        report(
            "ended",
            code=ended.exit_code,
            signal=ended.signal,
            fault=ended.fault.value,
            problem=ended.problem,
            service=ended.service,
            left=ended.left,
            used=run.counters()._asdict(),
        )
    except PayloadError as error:
        with contextlib.suppress(NameError):
            run.close()
        report("refused", fault=error.fault.value, problem=str(error))
    guardian.close()


def note(line: str) -> None:
    """One line for who reads this test's output."""
    print(line, file=sys.stderr, flush=True)


def report(what: str, **details: Any) -> None:
    """One line for the test."""
    print(json.dumps({"what": what, **details}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
