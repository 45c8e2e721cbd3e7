"""The failover between two ResourceManagers, as a command of dlapp and a plain client see it."""

from __future__ import annotations

import contextlib
import getpass
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from bench import Row
from bench._throwaway import COMMANDS, own_state
from tests.services.hadoop import RESOURCEMANAGERS, Hadoop, with_zookeeper
from tests.services.zookeeper import ZooKeeper

ROUNDS = 5
POLL_S = 0.1
PATIENCE_S = 120.0
_PARTS = ("nn", "dn", *RESOURCEMANAGERS, "nm1", "nm2")


def failover() -> Row:
    """From the SIGKILL of the active ResourceManager to the answer of a dlapp-list, against that of a plain client."""
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeper.start())
        settings = {"yarn-site.xml": with_zookeeper(zookeeper.ensemble)}
        hadoop = stack.enter_context(Hadoop.start(parts=_PARTS, settings=settings, wait=False))
        root, environment = stack.enter_context(own_state())
        hadoop.wait_until_ready(parts=("nn", "dn"))
        environment = {
            **environment,
            "DLAPP_CLUSTER": "yarn",
            "DLAPP_YARN_CONF_DIR": str(hadoop.configuration),
            "HADOOP_USER_NAME": getpass.getuser(),
        }
        taken = [_once(hadoop, root, environment) for _ in range(ROUNDS)]
    ours, plain = zip(*taken, strict=True)
    return Row(
        name="failover",
        ratio=statistics.median(one - two for one, two in taken),
        goal=2.0,
        better="lower",
        conditions={"s": statistics.median(ours), "rest_s": statistics.median(plain), "runs": ROUNDS},
    )


def _once(hadoop: Hadoop, root: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    """Return when dlapp-list and the plain client had an answer after the kill [s]."""
    active = hadoop.wait_until_both_serve()
    subprocess.run([COMMANDS / "dlapp-list"], env=environment, cwd=root, check=True, capture_output=True)
    found: dict[str, float] = {}

    def measure(name: str, ask: Callable[[], bool], pause_s: float) -> None:
        while time.monotonic() - began < PATIENCE_S:
            if ask():
                found[name] = time.monotonic() - began
                return
            time.sleep(pause_s)

    def plain() -> bool:
        for one in RESOURCEMANAGERS:
            # One on standby redirects to the other.
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{hadoop.url_of(one)}/ws/v1/cluster/apps", timeout=1.0).close()
                return True
        return False

    def command() -> bool:
        done = subprocess.run([COMMANDS / "dlapp-list"], env=environment, cwd=root, capture_output=True, check=False)
        return done.returncode == 0

    threads = [
        threading.Thread(target=lambda: measure("plain", plain, POLL_S)),
        threading.Thread(target=lambda: measure("command", command, 0.0)),
    ]
    began = time.monotonic()
    hadoop.kill_part(active)
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    hadoop.start_part(active)
    return found["command"], found["plain"]
