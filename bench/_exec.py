"""A command in a running container by dlapp-exec, over ``docker exec`` of the same command in the same container.

The first stream to a container starts the process of its streams; the round that is thrown away has that.
"""

from __future__ import annotations

import os
import time
from statistics import median

from bench import Row, alternately, median_ratio
from bench._throwaway import COMMANDS, DEADLINE_S, command, own_state, whole_process_s
from tests.applications import properties
from tests.services.containers.dockerd import IMAGE, own_daemon, why_not
from tests.services.install import install

ROUNDS = int(os.environ.get("DLAPP_BENCH_ROUNDS", "15"))


def row() -> Row:
    """Measure it. Raises SystemExit: there is no Docker here."""
    if why_not() is not None:
        install(["docker.io", "busybox-static"])
    if (reason := why_not()) is not None:
        raise SystemExit(f"Error: {reason}")
    with own_daemon() as daemon, own_state() as (root, env):
        env |= {"DLAPP_RUNTIME_DOCKER_HOST": daemon.host, "DLAPP_RUNTIME_DOCKER_NETWORK": "none"}
        file = properties(root, "while :; do sleep 1; done", application={"docker_image": IMAGE})
        command(env, "dlapp-launcher", str(file))
        deadline = time.monotonic() + DEADLINE_S
        while not (found := daemon.containers("label=dlapp.container", "status=running")):
            if time.monotonic() > deadline:
                raise SystemExit("Error: the container does not run")
            time.sleep(0.05)
        ours = [str(COMMANDS / "dlapp-exec"), "last", "--", "true"]
        theirs = ["docker", "--host", daemon.host, "exec", found[0], "true"]
        try:
            taken = alternately([lambda: whole_process_s(env, ours), lambda: whole_process_s(env, theirs)], ROUNDS)
        finally:
            command(env, "dlapp-kill", "last")
    return Row(
        name="exec",
        ratio=median_ratio(*taken),
        goal=1.2,
        better="lower",
        conditions={"rounds": ROUNDS, "dlapp_s": median(taken[0]), "docker_exec_s": median(taken[1])},
    )
