"""NodeManagers that are killed and started again under an index, on a real YARN: it runs again, however often.

And those that are stopped (SIGSTOP) while an ApplicationMaster is killed, and the other way round: what is stopped goes
on later, and finds what has changed meanwhile.
"""

from __future__ import annotations

import getpass
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import Phase
from dlapp.values.report import Cause, ContainerView, State
from tests.cluster.yarn.faults.test_killed_masters import Devices, Run, Runs, alive, devices, runs
from tests.cluster.yarn.on_yarn import until, until_heard_of
from tests.services.hadoop import NODES, Hadoop
from tests.services.keeper import end_all_in
from tests.tiers import FULL

__all__ = ["devices", "runs"]
KILLS = 10 if FULL else 1
SCRIPT = """#!/bin/sh
echo begun >> {runs}
if [ $(wc -l < {runs}) -gt {kills} ]; then exit 0; fi
while echo step > checkpoint; do sleep 0.2; done
exit 1
"""


class Running(NamedTuple):
    """An application of one index, whose script ends well after `KILLS` runs that did not end by themselves."""

    client: Client
    application_id: ApplicationId
    runs: Path

    def start_count(self) -> int:
        return len(self.runs.read_text().split()) if self.runs.exists() else 0

    def container(self, number: int) -> ContainerView | None:
        """Return the container of a run, once what is shown of the application has it."""
        found = self.client.status(self.application_id).containers
        is_it = [(item.attempt, item.phase) for item in found] == [(number, Phase.RUNNING)]
        return found[0] if is_it else None


@pytest.fixture
def running(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    workspace, runs = tmp_path / "workspace", tmp_path / "runs"
    workspace.mkdir()
    (workspace / "run.sh").write_text(SCRIPT.format(runs=runs, kills=KILLS))
    path = tmp_path / "app.properties"
    path.write_text(
        "[application]\nappname=lost\nuser_dev_workspace_path=./workspace\nuser_shell_script=run.sh\n"
        f"username={getpass.getuser()}\n[resources]\nmemory=256m\n"
    )
    options = {
        "cluster": "yarn",
        "yarn.conf_dir": str(hadoop.configuration),
        "yarn.python": sys.executable,
        "local.state_dir": str(tmp_path / "state"),
    }
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    client = Client(load_config(options))
    yield Running(client, client.submit(str(path)).application_id, runs)
    client.engine.close()
    end_all_in(tmp_path)


def restart_nodemanager_of(hadoop: Hadoop, running: Running, number: int) -> None:
    """Kill the NodeManager of a run's container, start it again, and wait until all nodes serve."""
    until(lambda: running.start_count() == number, 240)
    container = until(lambda: running.container(number))
    part = next(part for part, host in NODES.items() if f"//{host}:" in container.log_url)
    registered = hadoop.log(part).count("Registered with ResourceManager")
    hadoop.kill_part(part)
    hadoop.start_part(part)
    # The ResourceManager takes it for running for some seconds after its death.
    until(lambda: hadoop.log(part).count("Registered with ResourceManager") > registered)
    until(hadoop.nodes_ready)


@pytest.mark.slow
def test_an_index_runs_again_whenever_its_nodemanager_is_restarted_without_recovery(
    hadoop: Hadoop, running: Running
) -> None:
    """Kill the NodeManager of its container and start it again, once, at night ten times; then the index succeeds.

    It has begun once more than there were kills, and each run before the last ended with ``node_lost``.
    """
    for number in range(1, KILLS + 1):
        restart_nodemanager_of(hadoop, running, number)
    end = running.client.wait(running.application_id, timeout_s=240)
    assert end.cause is Cause.SUCCEEDED, end.diagnostics
    assert running.start_count() == KILLS + 1
    (container,) = end.containers
    assert {item.diagnosis.rule for item in container.earlier if item.diagnosis is not None} == {"node_lost"}


# ---- stopped ----


def part_of(pid: int) -> str:
    """Return the NodeManager of a process, by the directory of its container."""
    directory = os.readlink(f"/proc/{pid}/cwd")
    return next(part for part, host in NODES.items() if f"/local-{host}/" in directory)


def start(runs: Runs, devices: Devices) -> tuple[Run, dict[int, str]]:
    """Return an application of two containers with a GPU each that run, and the NodeManager of each index."""
    one = runs.submit(gcores=1, devices=devices)
    view = until(one.running)
    until_heard_of(runs.hadoop, *(task.container_id for task in view.containers))
    parts = {host: part for part, host in NODES.items()}
    return one, {
        task.index: next(part for host, part in parts.items() if f"//{host}:" in task.log_url)
        for task in view.containers
    }


def losses(hadoop: Hadoop, part: str) -> int:
    """Return how often the ResourceManager has given up a node."""
    return hadoop.log("rm").count(f"Deactivating Node {NODES[part]}:{hadoop.ports['nm']} as it is now LOST")


def check_end(one: Run, moved: list[int]) -> None:
    """See that an application ends right, and that only these indexes ran on another node, each twice.

    Each payload locks its index and its GPU (`Run`), so none of them was used twice at a time.
    """
    until(lambda: all(len(one.started_payloads(index)) == 2 for index in moved))
    one.go()
    end = one.check_its_end()
    assert [index for index in range(len(end.containers)) if len(one.started_payloads(index)) == 2] == moved
    for task in end.containers:
        # A task that its NodeManager has killed reports that itself, with the reason in its message.
        shown = [each.diagnosis.rule if each.diagnosis is not None else each.message for each in task.earlier]
        assert len(shown) == (task.index in moved)
        assert all("node_lost" in item or "its node is lost" in item for item in shown), shown


@pytest.mark.slow
def test_a_nodemanager_is_stopped_while_its_applicationmaster_is_killed(
    runs: Runs, devices: Devices, hadoop: Hadoop
) -> None:
    """Continue the NodeManager when the ApplicationMaster is dead: the tasks run on, and a second attempt has them."""
    one, _ = start(runs, devices)
    part = part_of(one.master())
    hadoop.pause_part(part)
    try:
        os.kill(one.master(), signal.SIGKILL)
        until(lambda: not alive(one.master()))
        assert one.view().state is State.RUNNING
    finally:
        hadoop.resume_part(part)
    until(lambda: one.running(attempt=2))
    check_end(one, [])


if FULL:

    def test_a_nodemanager_is_stopped_until_it_is_lost_while_its_applicationmaster_is_killed(
        runs: Runs, devices: Devices, hadoop: Hadoop
    ) -> None:
        """Continue the NodeManager when the second attempt runs, on the other node."""
        one, part_by_index = start(runs, devices)
        part = part_of(one.master())
        before = losses(hadoop, part)
        hadoop.pause_part(part)
        try:
            os.kill(one.master(), signal.SIGKILL)
            until(lambda: losses(hadoop, part) > before)
            until(lambda: "after register" in one.points(2))
            assert one.view().state is State.RUNNING
        finally:
            hadoop.resume_part(part)
            hadoop.wait_until_ready()
        check_end(one, [index for index, its in part_by_index.items() if its == part])

    @pytest.mark.parametrize("kind", ["killed", "stopped"])
    @pytest.mark.parametrize("whose", ["its own", "the other"])
    def test_an_applicationmaster_is_stopped_while_a_nodemanager_is_lost(
        runs: Runs, devices: Devices, hadoop: Hadoop, whose: str, kind: str
    ) -> None:
        """Continue both when the node is lost: first the ApplicationMaster, then the NodeManager."""
        one, part_by_index = start(runs, devices)
        master = one.master()
        own = part_of(master)
        part = own if whose == "its own" else next(each for each in NODES if each != own)
        before = losses(hadoop, part)
        os.kill(master, signal.SIGSTOP)
        try:
            hadoop.kill_part(part) if kind == "killed" else hadoop.pause_part(part)
            try:
                until(lambda: losses(hadoop, part) > before)
                assert one.view().state is State.RUNNING
            finally:
                os.kill(master, signal.SIGCONT)
            moved = [index for index, its in part_by_index.items() if its == part]
            until(lambda: all(len(one.started_payloads(index)) == 2 for index in moved))
        finally:
            hadoop.start_part(part) if kind == "killed" else hadoop.resume_part(part)
            hadoop.wait_until_ready()
        check_end(one, moved)
