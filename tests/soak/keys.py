"""An application on a real YARN that replaces the keys of its tokens as often as it may, while containers come and go.

A round is one application as long as the whole soak. Two of its containers run all the time, so the tokens that they
were started with are long out of use at the end; two others fail every few seconds and start again, in new containers
with tokens of the present keys. Its ApplicationMaster is killed twice. Between the kills the ResourceManager is killed
and starts again: then the ApplicationMaster has to connect with the last token that it was sent.
"""

from __future__ import annotations

import contextlib
import getpass
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.report import ApplicationView, Cause
from tests.applications import kill_processes, processes_of, properties
from tests.cluster.yarn.on_yarn import until_heard_of
from tests.services.hadoop import Hadoop
from tests.soak.problem import Problem

EXPIRY_S = 20
"""YARN gives up a node or an ApplicationMaster that is silent for so long."""
ROLLING_S = 3 * EXPIRY_S + 1
"""The shortest that YARN takes: a new key is used after 1.5 times the expiry, and an interval is over twice that.
Source: AMRMTokenSecretManager, RMContainerTokenSecretManager and NMTokenSecretManagerInRM, 3.4.2."""
KEYS = ("am-rm-tokens", "container-tokens", "nm-tokens")
LOGGED = ("amrm-tokens", "container-tokens", "nm-tokens")
SETTINGS = {
    "yarn.am.liveness-monitor.expiry-interval-ms": str(EXPIRY_S * 1000),
    "yarn.nm.liveness-monitor.expiry-interval-ms": str(EXPIRY_S * 1000),
    "yarn.resourcemanager.am.max-attempts": "3",
    # What a problem needs: the logs of all containers stay.
    "yarn.nodemanager.delete.debug-delay-sec": "7200",
    **{f"yarn.resourcemanager.{key}.master-key-rolling-interval-secs": str(ROLLING_S) for key in KEYS},
}
LASTING, COMING = 2, 2
DEADLINE_S = 240.0
PROGRAM = """\
exec 9>@/lock-$CONTAINER_INDEX
flock -n 9 || touch @/twice-$CONTAINER_INDEX
echo start >>@/starts-$CONTAINER_INDEX
n=0
until [ -e @/done ]; do
    sleep 0.1; n=$((n + 1))
    [ $CONTAINER_INDEX -lt %d ] || [ $n -lt $((60 + $$ %% 60)) ] || exit 7
done
"""


def rounds(seconds: float, seed: int) -> Iterator[str]:
    """Run one application for so long, and yield a line on it. Raises Problem."""
    directory = Path(tempfile.mkdtemp(prefix="dlapp-soak-keys-"))
    with Hadoop.start(settings={"yarn-site.xml": SETTINGS}) as hadoop, _Run(directory, hadoop) as run:
        try:
            yield run.run(seconds, random.Random(seed))
        except Problem:
            for path in (*hadoop.directory.glob("*.log"), *hadoop.directory.glob("logs-*")):
                (shutil.copytree if path.is_dir() else shutil.copy)(path, directory / path.name)
            raise
    shutil.rmtree(directory)


class _Run:
    """One application, and what happens to it."""

    def __init__(self, directory: Path, hadoop: Hadoop) -> None:
        self._directory, self._hadoop = directory, hadoop
        options = {
            "cluster": "yarn",
            "yarn.conf_dir": str(hadoop.configuration),
            "yarn.python": sys.executable,
            "yarn.am_attempts": "3",
            "local.state_dir": str(directory / "state"),
        }
        self._client = Client(load_config(options))
        self._application: ApplicationId

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.engine.close()

    def run(self, seconds: float, chance: random.Random) -> str:
        """Run it; return what was seen. Raises Problem."""
        here = self._directory
        script = (PROGRAM % LASTING).replace("@", str(here))
        resources = {"containers": LASTING + COMING, "memory": 256, "retries": 1000}
        file = properties(here, script, application={"username": getpass.getuser()}, resources=resources)
        self._application = self._client.submit(str(file)).application_id
        self._until("all run", lambda: len([*here.glob("starts-*")]) == LASTING + COMING)
        began = time.monotonic()
        for share, do in (
            (chance.uniform(0.25, 0.4), self._kill_master),
            (0.5, self._restart_resourcemanager),
            (chance.uniform(0.7, 0.8), self._kill_master),
            (1.0, (here / "done").touch),
        ):
            time.sleep(max(0.0, began + share * seconds - time.monotonic()))
            do()
        end = self._client.wait(self._application, timeout_s=DEADLINE_S)
        return self._check(end, seconds)

    def _kill_master(self) -> None:
        """SIGKILL the ApplicationMaster when the ResourceManager has heard of all that runs, and wait for the next."""
        before = self._client.status(self._application)
        lasting = [container.container_id for container in before.containers if container.index < LASTING]
        until_heard_of(self._hadoop, *map(ContainerId.from_text, map(str, lasting)))
        kill_processes([process.pid for process in processes_of(str(self._application)) if process.role == "am"])
        self._until("the next ApplicationMaster", lambda: self._is_attempt(before.attempt + 1))

    def _is_attempt(self, number: int) -> bool:
        with contextlib.suppress(OSError):
            view = self._client.status(self._application)
            return view.attempt == number and view.phase.startswith("running")
        return False

    def _restart_resourcemanager(self) -> None:
        self._hadoop.kill_part("rm")
        self._hadoop.start_part("rm")
        self._hadoop.wait_until_ready()

    def _check(self, end: ApplicationView, seconds: float) -> str:
        here, log = self._directory, self._hadoop.log("rm")
        if end.cause is not Cause.SUCCEEDED:
            raise Problem(f"{end.application_id} ended with {end.cause}: {end.diagnostics}; files: {here}")
        starts = [(here / f"starts-{index}").read_text().count("\n") for index in range(LASTING + COMING)]
        rolled = [log.count(f"Rolling master-key for {item}") for item in LOGGED]
        sent = log.count("Send new AMRMToken back to application")
        wrong = [f"index {path.name[6:]} ran twice at a time" for path in here.glob("twice-*")]
        if end.attempt != 3:
            wrong.append(f"the last attempt is {end.attempt}, not 3")
        if starts[:LASTING] != [1] * LASTING:
            wrong.append(f"those that run all the time were started {starts[:LASTING]} times")
        for container in end.containers:
            ends = {(before.exit_code, before.message) for before in container.earlier}
            wrong += [f"container {container.index}: {code}, {text}" for code, text in ends if code != 7]
        # The restart of the ResourceManager, which starts a new interval, may take one at each side.
        if min(rolled) < max(1, seconds / ROLLING_S - 2):
            wrong.append(f"{rolled} new keys of {KEYS} in {seconds:.0f} s")
        if sent < rolled[0] - 1:
            wrong.append(f"{sent} tokens of {rolled[0]} keys were sent")
        if wrong:
            raise Problem(f"{end.application_id}: {'; '.join(wrong)}; files: {here}")
        return f"{sum(starts)} containers, {rolled} keys, {sent} new tokens for 3 ApplicationMasters"

    def _until(self, what: str, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not look():
            if time.monotonic() >= deadline:
                raise Problem(f"{what}: not so after {DEADLINE_S:.0f} s; files: {self._directory}")
            time.sleep(0.2)
