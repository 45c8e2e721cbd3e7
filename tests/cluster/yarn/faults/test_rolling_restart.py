"""A rolling restart of every server under load, and a failover of ResourceManagers while many containers start.

The cluster has two ResourceManagers, and NodeManagers that find their containers again; ZooKeeper has the state of the
ResourceManagers and the GPU ledger.
"""

from __future__ import annotations

import contextlib
import faulthandler
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.applications import ended, launch, properties, run, status, wait_for
from tests.seeds import each_seed
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.hadoop import NODES, QUICK_TO_NOTICE, RECOVERY, RESOURCEMANAGERS, Hadoop, NoHadoop, with_zookeeper
from tests.services.zookeeper import ZooKeeper, zookeeper_for_tests
from tests.tiers import FULL

pytestmark = [pytest.mark.hadoop, pytest.mark.zookeeper, pytest.mark.slow]
END_S, TEST_S = 480.0, 1800.0
SHORT, LONG = 10, 2
"""Short applications, and containers of the long one, each with a GPU."""
STARTS = 40
"""Containers of the application that starts at a failover; a node has room for 14 of 256 MiB."""
PROGRAM = """\
exec 8>@/gpu-$CUDA_VISIBLE_DEVICES 9>@/index-$1-$CONTAINER_INDEX
test -z "$CUDA_VISIBLE_DEVICES" || flock -n 8 || touch @/twice-gpu-$CUDA_VISIBLE_DEVICES
flock -n 9 || touch @/twice-$1-$CONTAINER_INDEX
echo start >>@/starts-$1-$CONTAINER_INDEX
mkdir -p output model
"""


class Servers(NamedTuple):
    """The cluster and its ZooKeeper."""

    hadoop: Hadoop
    zookeeper: ZooKeeper

    def registrations(self, part: str) -> int:
        """Return how often a NodeManager has registered with a ResourceManager."""
        return self.hadoop.log(part).count("Registered with ResourceManager")

    def restart(self, part: str) -> None:
        """End one server orderly and start it again; return when all serve."""
        if part == "zookeeper":
            self.zookeeper.stop_server("zk1")
            self.zookeeper.start_server("zk1")
            self.zookeeper.wait_until_ready()
        else:
            registered = self.registrations(part)
            self.hadoop.stop_part(part)
            self.hadoop.start_part(part)
            if part == "dn":
                self.hadoop.wait_for_datanode(part)
            if part in NODES:
                wait_for(f"{part} registers", lambda: self.registrations(part) > registered, END_S)
        self.hadoop.wait_until_ready(parts=("dn",))
        self.hadoop.wait_until_both_serve()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(zookeeper_for_tests())
        nodes = {"yarn.nodemanager.resource.cpu-vcores": "64", "yarn.nodemanager.recovery.supervised": "true"}
        settings = {
            "hdfs-site.xml": QUICK_TO_NOTICE,
            "yarn-site.xml": with_zookeeper(zookeeper.ensemble) | RECOVERY | nodes,
        }
        try:
            parts = ("nn", "dn", *RESOURCEMANAGERS, *NODES)
            hadoop = stack.enter_context(Hadoop.start(parts=parts, settings=settings, wait=False))
        except NoHadoop as missing:
            pytest.skip(f"no Hadoop: {missing}")
        hadoop.wait_until_ready(parts=("dn",))
        hadoop.wait_until_both_serve()
        yield Servers(hadoop, zookeeper)


@pytest.fixture
def place(servers: Servers, tmp_path: Path, travel_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for files by which programs and the test speak; commands and clients use the cluster."""
    faulthandler.dump_traceback_later(TEST_S, exit=True)  # pytest's own limit is shorter
    tmp_path.chmod(0o755)
    here = tmp_path / "place"
    here.mkdir()
    devices = with_devices(tmp_path, [StubDevice() for _ in range(LONG)])
    python, credentials, config = (tmp_path / name for name in ("python3", "credentials", "config.yaml"))
    exports = "".join(f"export {name}='{value}'\n" for name, value in devices.items())
    python.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    credentials.write_text("dlapp:secret\n")
    credentials.chmod(0o600)
    config.write_text(
        f"cluster: yarn\nyarn:\n  conf_dir: {servers.hadoop.configuration}\n  python: {python}\n"
        f"gpuid:\n  zookeeper:\n    ensemble: {servers.zookeeper.ensemble}\n    credentials: {credentials}\n"
    )
    monkeypatch.setenv("DLAPP_CONFIG", str(config))
    cache = Path.home() / ".cache" / "dlapp"
    cache.mkdir(parents=True)
    (cache / "travel").symlink_to(travel_cache)
    yield here
    (here / "go").touch()


def submit(place: Path, name: str, script: str, **sections: dict[str, object]) -> str:
    """Submit an application whose program notes its starts; return its id."""
    text = (PROGRAM + script).replace("@", str(place)).replace("$1", name)
    return launch(properties(place, text, name=name, **sections))


def check_starts(place: Path, name: str, containers: int) -> None:
    """See that each index of an application ran once, and none twice at a time."""
    starts = [(place / f"starts-{name}-{index}").read_text() for index in range(containers)]
    assert starts == ["start\n"] * containers
    assert not [*place.glob("twice-*")]


if FULL:

    @each_seed("rolling restart", 1)
    def test_a_rolling_restart_of_every_server_loses_no_work(servers: Servers, place: Path, seed: int) -> None:
        """Restart seven servers, in an order that the seed chooses, while applications run.

        One of two containers with GPUs, output and checkpoints runs all the time. Ten short ones, with output, are
        submitted one after another; each waits for two of the servers' restarts at most.
        """
        parts = ["nn", "dn", *RESOURCEMANAGERS, *NODES, "zookeeper"]
        random.Random(seed).shuffle(parts)
        print(parts)
        root = f"/tmp/rolling-{seed}"
        long = submit(
            place,
            "long",
            "number=0; until [ -e @/go ]; do number=$((number + 1)); echo $number >model/new; mv model/new model/step\n"
            "sleep 0.5; done; echo $CONTAINER_INDEX >output/index",
            resources={"containers": LONG, "gcores": 1, "memory": 256, "retries": 0},
            to_hdfs={"output_path": "output", "hdfs": f"{root}/long"},
            checkpoint={"path": "model", "every": "2s", "role": "all"},
        )
        wait_for("the long one runs", lambda: f"running {LONG} of {LONG}" in status(long)["phase"], END_S)
        found: list[str] = []
        problems: list[BaseException] = []

        def stream() -> None:
            try:
                for number in range(SHORT):
                    name = f"short{number}"
                    output: dict[str, object] = {"output_path": "output", "hdfs": f"{root}/{name}"}
                    resources: dict[str, object] = {"memory": 256, "retries": 0}
                    script = "sleep 1; echo $1 >output/name"
                    found.append(submit(place, name, script, resources=resources, to_hdfs=output))
                    ended(found[-1], END_S)
            except BaseException as problem:
                problems.append(problem)

        thread = threading.Thread(target=stream)
        thread.start()
        try:
            for part in parts:
                done = len(found)
                servers.restart(part)
                wait_for("one more", lambda done=done: len(found) > min(done, SHORT - 1) or problems, END_S)  # type: ignore[misc]
        finally:
            thread.join(END_S)
        assert problems == []
        (place / "go").touch()
        for name, application, containers in (
            ("long", long, LONG),
            *((f"short{number}", one, 1) for number, one in enumerate(found)),
        ):
            end = ended(application, END_S)
            assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
            check_starts(place, name, containers)
        assert (end_of_long := status(long))["checkpoint"]["number"] > len(parts)
        assert end_of_long["checkpoint"]["why"] == ""

    @each_seed("starts at a failover", 1)
    def test_containers_that_start_at_a_failover_run_each_index_once(servers: Servers, place: Path, seed: int) -> None:
        """Kill the active ResourceManager while some of 40 containers have started, as many as the seed chooses."""
        several = random.Random(seed).randint(1, 20)
        application = submit(place, "many", "sleep 0.1", resources={"containers": STARTS, "memory": 256, "retries": 0})

        def started_count() -> int:
            return len([*place.glob("starts-many-*")])

        active = servers.hadoop.wait_until_both_serve()
        wait_for(f"{several} of them begin", lambda: started_count() >= several, END_S)
        print(f"{active} is killed after {started_count()} starts")
        servers.hadoop.kill_part(active)
        servers.hadoop.start_part(active)
        end = ended(application, END_S)
        assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
        check_starts(place, "many", STARTS)
        servers.hadoop.wait_until_both_serve()
        assert run("dlapp-status", application).code == 0
