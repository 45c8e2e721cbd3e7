"""ApplicationMasters on a real YARN that are killed, stopped or cut off at any point of their run: it ends right.

What right is, each run tells itself: no index ever ran twice at a time (its script holds a lock), none was forgotten,
the output is whole, and was committed once: nothing is left beside it.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.gpuid.rules import HostRecord, LeaseRequest, NotEnough
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from dlapp.hadoop.configuration import read_configuration
from dlapp.login import Login
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, Cause, State
from tests.applications import properties
from tests.cluster.yarn.on_yarn import set_safe_mode, until, until_heard_of
from tests.seeds import seeds
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.hadoop import NODES, Hadoop
from tests.services.processes import am_at_points
from tests.services.processes.am_at_points import STOP
from tests.services.zookeeper import ZooKeeper, ledger_settings
from tests.tiers import FULL

CONTAINERS = 2
ROUNDS = 14
"""Of a full run: so that each has few enough applications for its time limit."""
TWICE = ("StartTask", "Assign", "Journal grant", "Journal assign", "Journal result")
POINTS = (
    "before register",
    "after StartTask",
    "after Assign",
    "before Journal run",
    "after Journal result",
    "before claim",
    "after claim",
    "commit swapped",
    "before finish",
)
"""Where a quick run kills, some of them; a full one kills at every point that a run passes."""


@dataclass
class Run:
    """One application whose script waits for ``go``, and its ApplicationMasters with their points."""

    hadoop: Hadoop
    directory: Path
    point: str = ""
    nth: int = 1
    do: str = am_at_points.KILL
    outlives: bool = False
    hasty: bool = False
    attempts: int = 2
    gcores: int = 0
    devices: Devices | None = None
    application_id: ApplicationId = field(init=False)

    def __post_init__(self) -> None:
        python = am_at_points.install(
            self.directory,
            self.point,
            nth=self.nth,
            do=self.do,
            outlives=self.outlives,
            hasty=self.hasty,
            environment=self.devices.environment if self.devices else None,
        )
        options = {"cluster": "yarn", "yarn.conf_dir": str(self.hadoop.configuration), "yarn.python": str(python)}
        options |= self.devices.options if self.devices else {}
        options["yarn.am_attempts"] = str(self.attempts)
        environ = {name: text for name, text in os.environ.items() if not name.startswith("DLAPP_")}
        self.client = Client(load_config(options, environ))
        self.files = HdfsStagingFiles(read_configuration(str(self.hadoop.configuration)).hdfs(Login(getpass.getuser())))
        self.target = f"{self.files.home}/results/{self.directory.name}"

    def __str__(self) -> str:
        return f"{self.do} {self.point!r} ({self.nth}) of {self.application_id} in {self.directory}"

    def submit(self) -> None:
        here = self.directory
        script = (
            f'exec 9>"{here}/lock.$CONTAINER_INDEX"\n'
            f'flock -n 9 || echo "$CONTAINER_INDEX $DLAPP_ATTEMPT" >>"{here}/twice"\n'
            # Whoever has a GPU has its lock too: nobody else may.
            "n=3; for card in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do\n"
            f'    eval "exec $n>{here.parent}/$card"; flock -n $n || echo "$card" >>"{here}/twice"; n=$((n + 1))\n'
            "done\n"
            f'echo "$CUDA_VISIBLE_DEVICES" >>"{here}/begun.$CONTAINER_INDEX"\n'
            f'until [ -e "{here}/go" ]; do sleep 0.05; done\n'
            "mkdir -p output\n"
            'echo "new $CONTAINER_INDEX" >output/x'
        )
        self.files.make(f"{self.target}/0", 0o755)
        self.files.write(f"{self.target}/0/x", b"old\n", 0o644)
        file = properties(
            here,
            script,
            application={"appname": here.name, "username": getpass.getuser()},
            resources={"containers": CONTAINERS, "memory": "256m", "gcores": self.gcores},
            to_hdfs={"output_path": "output", "hdfs": self.target, "overwrite": "true"},
        )
        self.application_id = self.client.submit(str(file)).application_id

    def go(self) -> None:
        (self.directory / "go").touch()

    def view(self) -> ApplicationView:
        return self.client.status(self.application_id)

    def running(self, attempt: int = 1) -> ApplicationView | None:
        view = self.view()
        phases = [container.phase for container in view.containers]
        return view if view.attempt == attempt and phases == [Phase.RUNNING] * CONTAINERS else None

    def master(self, attempt: int = 1) -> int:
        return int((self.directory / f"pid-{attempt}").read_text())

    def points(self, attempt: int = 1) -> list[str]:
        return am_at_points.points(self.directory, attempt)

    def started_payloads(self, index: int) -> list[str]:
        """Return what each payload of an index that has begun had of GPUs."""
        return (self.directory / f"begun.{index}").read_text().splitlines()

    def check_its_end(self) -> ApplicationView:
        """Check that it ended as it should."""
        end = self.client.wait(self.application_id, timeout_s=240)
        assert end.cause is Cause.SUCCEEDED, f"{self}: {end.state} {end.diagnostics}"
        assert not (self.directory / "twice").exists(), f"{self}: {(self.directory / 'twice').read_text()}"
        begun = [path.name for path in self.directory.glob("begun.*")]
        assert sorted(begun) == [f"begun.{index}" for index in range(CONTAINERS)], str(self)
        for index in range(CONTAINERS):
            assert self.files.read(f"{self.target}/{index}/x", max_bytes=1 << 20) == f"new {index}\n".encode(), str(
                self
            )
        assert self.files.names(self.target) == [str(index) for index in range(CONTAINERS)], str(self)
        self.check_what_is_left()
        return end

    def is_settled(self) -> bool:
        return str(self.application_id) not in self.files.names(f"{self.files.home}/.dlapp/staging")

    def check_what_is_left(self) -> None:
        name = self.directory.name

        # The old target is this test's, not dlapp's, so it is never deleted.
        replaced = f"{name}.replaced.{self.application_id}"

        def beside() -> list[str]:
            return [item for item in self.files.names(f"{self.files.home}/results") if item.startswith(f"{name}.")]

        until(lambda: set(beside()) <= {replaced})
        # Who dies between its last word and its clean-up leaves that to the user's next command.
        self.client.engine.prepare()
        until(self.is_settled)

    def close(self) -> None:
        for number in (1, 2):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                os.kill(self.master(number), signal.SIGKILL)
        with contextlib.suppress(Exception):
            self.client.kill(self.application_id)
        self.client.engine.close()
        self.files.close()


class Runs:
    """The runs of one test."""

    def __init__(self, hadoop: Hadoop, directory: Path) -> None:
        self.hadoop, self.directory, self.all = hadoop, directory, list[Run]()

    def submit(
        self, point: str = "", nth: int = 1, *, do: str = am_at_points.KILL, outlives: bool = False, **more: Any
    ) -> Run:
        name = f"run-{time.time_ns():x}-{len(self.all)}"
        one = Run(self.hadoop, self.directory / name, point, nth, do, outlives, **more)
        self.all.append(one)
        one.submit()
        return one


@pytest.fixture
def runs(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    tmp_path.chmod(0o755)
    some = Runs(hadoop, tmp_path)
    yield some
    for item in some.all:
        item.close()


@pytest.fixture(scope="module")
def chosen(hadoop: Hadoop, tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[str, int]]]:
    """Choose for each round where its masters are killed: points, and which passing of each."""
    seed = seeds("masters on YARN", 1)[0]
    print("seed", seed)
    chance = random.Random(seed)
    if not FULL:
        return [[(name, 1) for name in chance.sample(POINTS, 3)]]
    whole = Run(hadoop, tmp_path_factory.mktemp("whole") / "run")
    try:
        whole.submit()
        whole.go()
        whole.check_its_end()
    finally:
        whole.close()
    passed = list(dict.fromkeys(whole.points()))
    assert set(passed) >= set(POINTS)
    # Twice in each: between its first and its second container much can be half done.
    every = [(name, 1) for name in passed] + [(name, CONTAINERS) for name in passed if name.endswith(TWICE)]
    chance.shuffle(every)
    return [every[number::ROUNDS] for number in range(ROUNDS)]


@pytest.mark.parametrize("round_", range(ROUNDS if FULL else 1))
def test_an_application_killed_at_any_point_ends_correctly(
    runs: Runs, chosen: list[list[tuple[str, int]]], round_: int
) -> None:
    print(f"killed at {chosen[round_]}")
    batch = [runs.submit(name, nth) for name, nth in chosen[round_]]
    for number, one in enumerate(batch):
        if number % 2:
            # Some have run for more than a second when their master dies: those YARN leaves alone.
            with contextlib.suppress(AssertionError):
                until(one.running, 3)
        one.go()
    for one in batch:
        one.check_its_end()
        # It may pass its point when YARN has reported the end already.
        until(lambda item=one: item.point in item.points())  # type: ignore[misc]


@pytest.mark.slow
def test_the_next_status_settles_output_left_by_the_last_applicationmaster(runs: Runs) -> None:
    points = ("commit old aside", "after claim", "before claim")
    cut, decided, stored = every = [runs.submit(point, attempts=1) for point in points]
    for item in every:
        item.go()
    for item in every:
        # The first look may come too early: until its processes are gone nothing is touched.
        until(lambda: item.view().state is State.FAILED and item.is_settled())  # noqa: B023
        assert item.point in item.points(), str(item)
    texts = [cut.files.read(f"{cut.target}/{index}/x", max_bytes=1 << 20) for index in range(CONTAINERS)]
    assert texts == [f"new {index}\n".encode() for index in range(CONTAINERS)]
    assert [
        decided.files.read(f"{decided.target}/{index}/x", max_bytes=1 << 20) for index in range(CONTAINERS)
    ] == texts
    cut.check_what_is_left()
    decided.check_what_is_left()
    assert stored.files.read(f"{stored.target}/0/x", max_bytes=1 << 20) == b"old\n"
    partial = f"{stored.target}.{stored.application_id}.partial"
    kept = [stored.files.read(f"{partial}/{name}/x", max_bytes=1 << 20) for name in stored.files.names(partial)]
    assert sorted(kept) == sorted(texts)
    results = f"{stored.files.home}/results"
    beside = [item for item in stored.files.names(results) if item.startswith(f"{stored.directory.name}.")]
    assert beside == [partial.rpartition("/")[2]]


# ---- GPUs ----


class Devices:
    """Cards of this machine, which is both nodes, and the ledger of them on ZooKeeper, as somebody else sees it."""

    def __init__(self, zookeeper: ZooKeeper, directory: Path, count: int) -> None:
        self.environment = with_devices(directory, [StubDevice() for _ in range(count)])
        credentials = directory / "credentials"
        credentials.write_text("dlapp:secret\n")
        credentials.chmod(0o600)
        self.options = {
            "gpuid.zookeeper.ensemble": zookeeper.ensemble,
            "gpuid.zookeeper.root": f"/{directory.parent.name}-{directory.name}",
            "gpuid.zookeeper.credentials": str(credentials),
            "gpuid.lock_dir": str(directory / "locks"),
        }
        settings = ledger_settings(
            zookeeper.ensemble,
            self.options["gpuid.zookeeper.root"],
            "dlapp:secret",
            lock_dir=self.options["gpuid.lock_dir"],
        )
        self.ledger = ZooKeeperLedger(
            settings, discover=lambda: tuple(device.device for device in self.record().devices)
        )

    def record(self) -> HostRecord:
        return self.ledger.record()

    def leases(self) -> dict[str, tuple[str, tuple[str, ...], str]]:
        """Container -> the application that holds, its GPUs, and what tells the lease from an earlier one."""
        return {lease.container: (lease.application, lease.devices, lease.token) for lease in self.record().leases}

    def are_refused(self) -> bool:
        """Return whether another application that requests a device now gets the error that none is free."""
        with pytest.raises(NotEnough, match="0 free"):
            self.ledger.acquire(LeaseRequest("application_1_0001", "container_1_0001_01_000002", "ann", 1))
        return True


@pytest.fixture
def devices(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[Devices]:
    """Four, of eight that YARN counts: so another application gets its containers at once, and waits for the ledger."""
    directory = tmp_path / "gpus"
    directory.mkdir()
    some = Devices(zookeeper, directory, 2 * CONTAINERS)
    yield some
    some.ledger.close()


@pytest.mark.slow
def test_leases_outlive_the_applicationmaster_and_keep_their_devices(runs: Runs, devices: Devices) -> None:
    one = runs.submit(gcores=2, devices=devices)
    before = until(one.running)
    held = devices.leases()
    assert sorted(held) == sorted(str(container.container_id) for container in before.containers)
    assert {(application, len(devices)) for application, devices, _ in held.values()} == {(str(one.application_id), 2)}
    until_heard_of(runs.hadoop, *(item.container_id for item in before.containers))
    other = runs.submit(gcores=1, devices=devices)
    other.go()
    os.kill(one.master(), signal.SIGKILL)
    until(lambda: devices.are_refused() and devices.leases() == held and one.running(attempt=2))
    until(lambda: devices.are_refused() and Phase.LEASING in [task.phase for task in other.view().containers])
    after = one.running(attempt=2)
    assert after is not None
    assert [(task.container_id, task.gpus) for task in after.containers] == [
        (task.container_id, task.gpus) for task in before.containers
    ]
    assert devices.leases() == held
    assert not list(other.directory.glob("begun.*"))
    one.go()
    assert one.check_its_end().attempt == 2
    other.check_its_end()
    until(lambda: not devices.leases())


if FULL:

    @pytest.mark.parametrize("point", POINTS[1:])
    def test_a_kill_at_any_point_leaves_no_lease_and_shares_no_device(runs: Runs, devices: Devices, point: str) -> None:
        one = runs.submit(point, gcores=2, devices=devices)
        other = runs.submit(gcores=2, devices=devices)
        one.go()
        other.go()
        for each in (one, other):
            each.check_its_end()
        assert one.point in one.points(), str(one)
        for each in (one, other):
            for path in each.directory.glob("begun.*"):
                assert all(len(line.split(",")) == 2 for line in path.read_text().splitlines()), str(each)
        until(lambda: not devices.leases())


# ---- two masters ----


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except FileNotFoundError:
        return False


def kill_container_of(run: Run) -> None:
    """SIGKILL the container of its first ApplicationMaster, which lives on."""
    parent = int(Path(f"/proc/{run.master()}/stat").read_text().rpartition(") ")[2].split()[1])
    os.kill(parent, signal.SIGKILL)


if FULL:

    def test_a_disconnected_applicationmaster_ends_and_its_tasks_find_the_other(runs: Runs) -> None:
        one = runs.submit(outlives=True)
        before = until(one.running)
        until_heard_of(runs.hadoop, *(item.container_id for item in before.containers))
        for name in ("cut-1", "hold-2"):
            (one.directory / name).touch()
        kill_container_of(one)
        until(lambda: one.points(2))
        assert alive(one.master(1))
        # The second says that it has the application; the first ends when it reads that.
        (one.directory / "hold-2").unlink()
        until(lambda: one.running(attempt=2))
        until(lambda: not alive(one.master(1)))
        one.go()
        end = one.check_its_end()
        assert [container.container_id for container in end.containers] == [
            container.container_id for container in before.containers
        ]
        assert "before claim" not in one.points(1)


if FULL:

    def test_tasks_continue_while_the_next_applicationmaster_is_unpublished(runs: Runs, hadoop: Hadoop) -> None:
        one = runs.submit(hasty=True)
        before = until(one.running)
        until_heard_of(runs.hadoop, *(container.container_id for container in before.containers))
        set_safe_mode(hadoop, on=True)
        try:
            os.kill(one.master(), signal.SIGKILL)
            until(lambda: "after register" in one.points(2))
            time.sleep(am_at_points.HASTY_RECOVERY_MS / 1000 + 5)
        finally:
            set_safe_mode(hadoop, on=False)
        after = until(lambda: one.running(attempt=2))
        assert after is not None
        assert [task.container_id for task in after.containers] == [task.container_id for task in before.containers]
        one.go()
        assert one.check_its_end().attempt == 2


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before claim", *(["before SettleOutputs", "after claim", "before archive"] * FULL)])
def test_an_applicationmaster_that_wakes_after_the_end_changes_nothing(runs: Runs, point: str) -> None:
    one = runs.submit(point, do=STOP)
    one.go()
    end = one.check_its_end()
    assert end.attempt == 2
    history = f"{one.files.home}/.dlapp/history/{one.application_id}.json"
    before = one.files.read(history, max_bytes=1 << 20)
    os.kill(one.master(1), signal.SIGCONT)
    until(lambda: not alive(one.master(1)))
    assert one.files.read(history, max_bytes=1 << 20) == before
    assert one.view().state is State.FINISHED
    one.check_its_end()


if FULL:

    def test_a_run_continues_when_the_resourcemanager_is_back(runs: Runs) -> None:
        one = runs.submit()
        until(one.running)
        runs.hadoop.kill_part("rm")
        one.go()  # its tasks end while no ApplicationMaster runs
        time.sleep(2)
        runs.hadoop.start_part("rm")
        runs.hadoop.wait_until_ready()
        assert one.check_its_end().attempt == 1

    @pytest.mark.parametrize("part", list(NODES))
    def test_indexes_of_a_lost_node_run_on_another_and_never_on_both(runs: Runs, part: str) -> None:
        # On one of the two its master runs too: then that one lives on, on a node that YARN has given up.
        one = runs.submit()
        before = until(one.running)
        indexes_on_node = [task.index for task in before.containers if f"//{NODES[part]}:" in task.log_url]
        words = f"Deactivating Node {NODES[part]}:{runs.hadoop.ports['nm']} as it is now LOST"
        lost_before = runs.hadoop.log("rm").count(words)
        runs.hadoop.kill_part(part)
        try:
            until(lambda: runs.hadoop.log("rm").count(words) > lost_before)
            # What runs there waits for "go": it ends for no other reason than an order to its task.
            until(lambda: all(len(one.started_payloads(index)) == 2 for index in indexes_on_node), 120)
            one.go()
            one.check_its_end()
        finally:
            runs.hadoop.start_part(part)
            runs.hadoop.wait_until_ready()
