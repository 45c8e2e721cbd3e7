"""Applications on a real YARN, hundreds in a row and dozens at once, of which nothing may be left.

A round is 300 applications one after the other and 40 at once (30 and 10 where there is less than half an hour for it),
of kinds that the seed chooses: some succeed, some fail, hold GPUs, write output, are ended softly or at once, or by
somebody else by way of YARN. After each half everything is counted that could be left: staging directories, containers
and what runs in them, leases, connections, and what ResourceManager and NodeManagers say in their metrics.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dlapp.client import Client
from dlapp.cluster.yarn.client.rest import YarnRest
from dlapp.cluster.yarn.staging import StagingPaths
from dlapp.config import load_config
from dlapp.gpuid.factory import configured, open_cluster_ledger
from dlapp.gpuid.rules import HostRecord
from dlapp.hadoop.configuration import read_configuration
from dlapp.login import Login
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.values.ids import ApplicationId
from dlapp.values.report import Cause
from tests.applications import properties
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.hadoop import NODES, Hadoop
from tests.services.zookeeper import ZooKeeper
from tests.soak.problem import Problem

FULL, REDUCED = (300, 40), (30, 10)
FULL_S = 1800.0
DEADLINE_S = 300.0
GCORES = 8
KINDS = {
    # kind -> (how often in a hundred, its script, its end)
    "succeeds": (40, "echo hello", Cause.SUCCEEDED),
    "two containers": (15, 'echo "hello from $CONTAINER_INDEX of $NUM_CONTAINERS"', Cause.SUCCEEDED),
    "a card": (15, 'test -n "$CUDA_VISIBLE_DEVICES"', Cause.SUCCEEDED),
    "output": (10, 'mkdir -p results && date >"results/$CONTAINER_INDEX"', Cause.SUCCEEDED),
    "fails": (5, "exit 3", Cause.FAILED),
    "soft-killed": (5, "sleep 1000 & trap 'kill $!' TERM; wait", Cause.SOFT_KILLED),
    "killed": (5, "exec sleep 1000", Cause.KILLED),
    "killed by others": (5, "exec sleep 1000", Cause.KILLED),
}
ROOMY = {
    "yarn-site.xml": {"yarn.nodemanager.resource.memory-mb": "65536", "yarn.nodemanager.resource.cpu-vcores": "256"}
}


def rounds(seconds: float, seed: int) -> Iterator[str]:
    """Yield a line for each half of a round; stop after ``seconds``. Raises Problem."""
    choice, deadline = random.Random(seed), time.monotonic() + seconds
    in_a_row, at_once = FULL if seconds >= FULL_S else REDUCED
    directory = Path(tempfile.mkdtemp(prefix="dlapp-soak-yarn-"))
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeper.start())
        hadoop = stack.enter_context(Hadoop.start(settings=ROOMY))
        soak = stack.enter_context(Soak(directory, hadoop, zookeeper, choice))
        soak.run(["succeeds", "a card"], together=False)  # what is made once is made now
        soak.settle()
        before = soak.connections()
        while True:
            for count, together in ((in_a_row, False), (at_once, True)):
                began = time.monotonic()
                kinds = choice.choices(list(KINDS), [often for often, _, _ in KINDS.values()], k=count)
                if together:  # they would wait for each other's GPUs, which is no fault and takes long
                    kinds = ["succeeds" if kind == "a card" else kind for kind in kinds]
                soak.run(kinds, together=together)
                took_s = time.monotonic() - began
                soak.settle()
                soak.count_leftovers(before)
                how = "at once" if together else "in a row"
                yield f"{count} {how} in {took_s:.0f} s: {_counted(kinds)}; nothing is left"
            if time.monotonic() >= deadline:
                break
    shutil.rmtree(directory)


class Soak:
    """Runs applications, and looks at what is left of them.

    Args:
        directory: for properties files and workspaces; it stays where there is a problem.
    """

    def __init__(self, directory: Path, hadoop: Hadoop, zookeeper: ZooKeeper, choice: random.Random) -> None:
        self._directory, self._hadoop, self._choice = directory, hadoop, choice
        python = directory / "python3"
        devices = with_devices(directory, [StubDevice() for _ in range(GCORES)])
        exports = "".join(f"export {name}='{text}'\n" for name, text in devices.items())
        python.write_text(f'#!/bin/sh\n{exports}exec {os.path.realpath(sys.executable)} "$@"\n')
        python.chmod(0o755)
        credentials = directory / "credentials"
        credentials.write_text("dlapp:secret\n")
        credentials.chmod(0o600)
        config = load_config(
            {
                "cluster": "yarn",
                "yarn.conf_dir": str(hadoop.configuration),
                "yarn.python": str(python),
                "gpuid.zookeeper.ensemble": zookeeper.ensemble,
                "gpuid.zookeeper.credentials": str(credentials),
                "gpuid.lock_dir": str(directory / "locks"),
                "local.state_dir": str(directory / "state"),
            }
        )
        self._zookeeper = zookeeper
        self._ledger = configured(config)
        self._client = Client(config)
        self._user = getpass.getuser()
        self._rest = YarnRest([hadoop.rm_url], Login(self._user))
        self._files = HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(self._user)))

    def __enter__(self) -> Soak:
        return self

    def __exit__(self, *_: object) -> None:
        self._rest.close()
        self._files.close()
        self._client.engine.close()

    # ---- applications ----

    def run(self, kinds: list[str], *, together: bool) -> None:
        """Run applications of these kinds, one after the other or all at once; each must end as its kind does."""
        waiting: list[tuple[ApplicationId, str]] = []
        for kind in kinds:
            waiting.append((self._client.submit(self._properties(kind)).application_id, kind))
            if not together:
                self._see_through(*waiting.pop())
        # Those that are to be ended from outside come first: the others end meanwhile.
        for item in sorted(waiting, key=lambda one: "killed" not in one[1]):
            self._see_through(*item)

    def _properties(self, kind: str) -> str:
        name = kind.replace(" ", "-")
        path = self._directory / f"{name}.properties"
        if path.exists():
            return str(path)
        sections: dict[str, dict[str, object]] = {
            "application": {"appname": f"'{kind}'", "username": self._user},
            "resources": {
                "containers": 2 if kind == "two containers" else 1,
                "memory": "256m",
                "gcores": int(kind == "a card"),
            },
        }
        if kind == "output":
            sections["to_hdfs"] = {"output_path": "results", "hdfs": "soak/output", "overwrite": "true"}
        return str(properties(self._directory, KINDS[kind][1], name=name, **sections))

    def _see_through(self, application_id: ApplicationId, kind: str) -> None:
        match kind:
            case "soft-killed":
                self._until(f"{application_id} runs", lambda: self._runs(application_id))
                self._client.softkill(application_id)
            case "killed":
                time.sleep(self._choice.uniform(0, 3))
                self._client.kill(application_id)
            case "killed by others":
                time.sleep(self._choice.uniform(0, 3))
                self._rest.kill(application_id, timeout_s=DEADLINE_S)
        view = self._client.wait(application_id, timeout_s=DEADLINE_S)
        if view.cause is not KINDS[kind][2]:
            raise Problem(f"{application_id} ({kind}) ended with {view.cause}: {view.diagnostics}")

    def _runs(self, application_id: ApplicationId) -> bool:
        return self._client.status(application_id).phase.startswith("running")

    # ---- what is left ----

    def settle(self) -> None:
        """Wait until YARN itself has nothing to do."""
        self._until("all containers have ended", lambda: not self._busy())

    def count_leftovers(self, connections_before: dict[str, int]) -> None:
        """Count what is left. Raises Problem."""
        # What others' kills leave is swept by the user's next command.
        self._client.engine.prepare()
        staging = StagingPaths(self._files.home).all_staging
        self._until("no staging directory is left", lambda: self._files.names(staging), empty=True)
        self._until("no process of a container is left", self._processes, empty=True)
        self._until("no container's directory is left", self._directories, empty=True)
        self._until("no lease is left", self._leases, empty=True)
        self._until(
            "no connection is left",
            lambda: {
                name: f"{count} of {connections_before[name]}"
                for name, count in self.connections().items()
                if count > connections_before[name]
            },
            empty=True,
        )

    def _busy(self) -> dict[str, int]:
        """Return what ResourceManager and NodeManagers count of what goes on, by their metrics."""
        metrics = self._hadoop.get(f"{self._hadoop.rm_url}/ws/v1/cluster/metrics")["clusterMetrics"]
        names = ("appsPending", "appsRunning", "allocatedMB", "allocatedVirtualCores", "containersAllocated")
        counted = {name: int(metrics[name]) for name in (*names, "containersReserved", "containersPending")}
        for host in NODES.values():
            url = f"http://{host}:{self._hadoop.ports['nm_http']}"
            (bean,) = self._hadoop.get(f"{url}/jmx?qry=Hadoop:service=NodeManager,name=NodeManagerMetrics")["beans"]
            of_node = ("AllocatedContainers", "AllocatedGB", "ContainersIniting", "ContainersRunning")
            counted |= {f"{host} {name}": int(bean[name]) for name in of_node}
            apps = self._hadoop.get(f"{url}/ws/v1/node/apps")["apps"] or {}
            counted[f"{host} applications"] = sum(item["state"] != "FINISHED" for item in apps.get("app", ()))
        return {name: count for name, count in counted.items() if count}

    def _processes(self) -> list[str]:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(place / "cwd").startswith(f"{self._hadoop.directory}/local-"):
                    found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80])
        return found

    def _directories(self) -> list[str]:
        found = self._hadoop.directory.glob("local-*/usercache/*/appcache/application_*/container_*")
        return [item.name for item in found]

    def _leases(self) -> list[str]:
        with contextlib.closing(open_cluster_ledger(self._ledger)) as ledger:
            return [
                lease.container
                for _, record in ledger.hosts()
                if isinstance(record, HostRecord)
                for lease in record.leases
            ]

    def connections(self) -> dict[str, int]:
        """TCP connections to the cluster that we hold when all are closed, the ledger's clients, what is half closed.

        Half closed: the one side has let go, the other, we or a server, has not. What the servers have among themselves
        is their own affair (the ResourceManager forgets its connections to the timeline server for a minute).
        """
        for item in (self._client.engine, self._rest, self._files):
            item.close()  # each opens what it needs again
        servers = {port: name for name, port in self._hadoop.ports.items()}
        servers[self._zookeeper.addresses[0][1]] = "zookeeper"
        counted = Counter({"half closed": 0, "ours": 0, "zookeeper": 0})
        own = _inodes_of(os.getpid())
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            local, remote = (int(words[place].partition(":")[2], 16) for place in (1, 2))
            state, inode = int(words[3], 16), words[9]
            if state == _CLOSE_WAIT and (inode in own or local in servers):
                counted["half closed"] += 1
            elif state == _ESTABLISHED and remote in servers:
                counted["ours"] += inode in own
                counted["zookeeper"] += servers[remote] == "zookeeper"
        return dict(counted)

    def _until(self, what: str, look: Callable[[], Any], *, empty: bool = False) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while bool(found := look()) is empty:
            if time.monotonic() >= deadline:
                left = json.dumps(found if empty else self._busy(), default=str)
                raise Problem(f"{what}: not so after {DEADLINE_S:.0f} s: {left}\n    files: {self._directory}")
            time.sleep(0.2)


_ESTABLISHED, _CLOSE_WAIT = 1, 8


def _inodes_of(pid: int) -> set[str]:
    found = set()
    for place in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            name = os.readlink(place)
            if name.startswith("socket:["):
                found.add(name[8:-1])
    return found


def _counted(kinds: list[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(kinds).items()))
