"""A node whose GPUs are in quarantine, on a real YARN that does not know it; the ledger is on a real ZooKeeper."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.gpuid.devices import Device
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from dlapp.values.ids import ApplicationId
from dlapp.values.launch_spec import LedgerSettings
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, Cause
from dlapp.values.waiting import GPUS_QUARANTINED, Waiting
from tests.applications import properties
from tests.cluster.yarn.on_yarn import until
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.hadoop import NODES, Hadoop
from tests.services.processes import am_at_points
from tests.services.zookeeper import ZooKeeper, ledger_settings
from tests.tiers import FULL

FIRST, SECOND = NODES.values()
DEVICES = tuple(Device(f"GPU-{place}", place, place) for place in range(4))


class Place:
    """A cluster with a ledger, in which this machine is both nodes; each has a record of its own, too."""

    def __init__(self, directory: Path, client: Client, settings: LedgerSettings, options: dict[str, str]) -> None:
        self.directory, self.client, self._settings, self._options = directory, client, settings, options

    def without_ledger(self) -> Client:
        """Return a client whose applications hold GPUs of YARN's, and wait for a ledger that is not there."""
        away = {"gpuid.zookeeper.ensemble": "127.0.0.1:1", "gpuid.zookeeper.credentials": "none"}
        return Client(load_config(self._options | away, environ={}))

    def ill(self, host: str, count: int = 3) -> None:
        """Some of the four GPUs of a node are in quarantine."""
        with ZooKeeperLedger(self._settings, host=host, discover=lambda: DEVICES) as ledger:
            ledger.update_inventory()
            for number in range(count):
                ledger.quarantine(f"gpu{number}", cause="operator", by="root")

    def run(self) -> ApplicationView:
        """Two containers of two GPUs each: both nodes have room for them, as YARN counts."""
        file = properties(self.directory, "true", resources={"gcores": 2, "containers": 2, "memory": 256})
        return self.client.wait(self.client.submit(str(file)), timeout_s=240)


@pytest.fixture
def place(hadoop: Hadoop, zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    tmp_path.chmod(0o755)
    python = tmp_path / "python3"
    devices = with_devices(tmp_path, [StubDevice() for _ in range(4)])
    exports = "".join(f"export {n}='{v}'\n" for n, v in devices.items())
    python.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    credentials = tmp_path / "credentials"
    credentials.write_text("dlapp:secret\n")
    credentials.chmod(0o600)
    options = {
        "cluster": "yarn",
        "yarn.conf_dir": str(hadoop.configuration),
        "yarn.python": str(python),
        "gpuid.zookeeper.ensemble": zookeeper.ensemble,
        "gpuid.zookeeper.root": f"/{tmp_path.name}",
        "gpuid.zookeeper.credentials": str(credentials),
        "gpuid.lock_dir": str(tmp_path / "locks"),
    }
    settings = ledger_settings(
        zookeeper.ensemble,
        options["gpuid.zookeeper.root"],
        credentials="dlapp:secret",
        lock_dir=options["gpuid.lock_dir"],
    )
    # Requests for GPUs wait for the first reading of the ledger, however long it takes here.
    patient = am_at_points.install(tmp_path / "patient", patient=True, environment=devices)
    with Client(load_config(options | {"yarn.python": str(patient)}, environ={})) as client:
        yield Place(tmp_path, client, settings, options)


@pytest.mark.slow
def test_no_container_is_placed_on_hosts_with_too_few_healthy_devices(place: Place) -> None:
    place.ill(FIRST)
    end = place.run()
    assert end.cause is Cause.SUCCEEDED, end.diagnostics
    # Each log's page at the history server names the node that it is of.
    assert [SECOND in container.log_url and FIRST not in container.log_url for container in end.containers] == [
        True
    ] * 2, end.containers


@pytest.mark.slow
def test_if_no_node_has_enough_devices_all_are_tried(place: Place) -> None:
    for host in (FIRST, SECOND):
        place.ill(host)
    end = place.run()
    assert end.cause is Cause.SUCCEEDED, end.diagnostics


@pytest.mark.slow
def test_gpus_in_quarantine_are_the_reason_of_a_wait_and_with_fewer_it_starts(place: Place) -> None:
    place.ill(FIRST)

    def submit(name: str, client: Client = place.client, **resources: object) -> ApplicationId:
        file = properties(place.directory, "true", name=name, resources={"memory": 256, **resources})
        return client.submit(str(file)).application_id

    with place.without_ledger() as other:
        holder = submit("holder", other, gcores=4, nodes=SECOND)
    until(lambda: [container.phase for container in place.client.status(holder).containers] == [Phase.LEASING], 120)
    one = submit("two", gcores=2)

    def reason() -> str:
        waiting = place.client.status(one).waiting
        return "" if waiting is None else waiting.code

    until(lambda: reason() == "gpus_quarantined", 120)

    def explained() -> Waiting | None:
        why = place.client.why(one).waiting
        # For a moment YARN's limit of a user can be what the user has: it grows with the user's requests.
        return why if why is not None and why.code == GPUS_QUARANTINED else None

    why = until(explained, 120)
    assert why.message == f"needs 2 GPUs, {FIRST} has 1 free, 3 are in quarantine"
    assert why.change == f"1 GPU: now, on {FIRST} (--set resources.gcores=1)"
    place.client.kill(one)
    assert place.client.wait(submit("one", gcores=1), timeout_s=240).cause is Cause.SUCCEEDED
    place.client.kill(holder)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10 if FULL else 1))
def test_two_gangs_of_four_gpus_on_six_always_both_finish(place: Place, part: int) -> None:
    del part  # each is two rounds; all 20 take some minutes
    for host in (FIRST, SECOND):  # YARN counts eight
        place.ill(host, 1)
    # What the first gang has it keeps until the other one was seen to wait or to give back, at most for a minute.
    seen_one = place.directory / "seen"
    waits = f"n=0; until [ -e {seen_one} ] || [ $n = 300 ]; do n=$((n + 1)); sleep 0.2; done"
    phases: set[str] = set()

    def is_seen() -> bool:
        return any("released its containers" in phase or "held, waiting for" in phase for phase in phases)

    for number in range(2):
        applications = []
        for name in ("a", "b"):
            directory = place.directory / f"{number}{name}"
            directory.mkdir()
            file = properties(
                directory,
                waits,
                application={"gang": "all", "gang_window": "3s"},
                resources={"gcores": 1, "containers": 4, "memory": 256},
            )
            applications.append(place.client.submit(str(file)).application_id)

        def both_have_ended(ids: tuple[ApplicationId, ...] = tuple(applications)) -> bool:
            seen = [place.client.status(id_) for id_ in ids]
            phases.update(item.phase for item in seen)
            if is_seen():
                seen_one.touch()
            return all(item.state.ended for item in seen)

        until(both_have_ended, 300)
        ends = [place.client.status(application) for application in applications]
        assert [end.cause for end in ends] == [Cause.SUCCEEDED] * 2, [end.diagnostics for end in ends]
    assert is_seen(), phases
