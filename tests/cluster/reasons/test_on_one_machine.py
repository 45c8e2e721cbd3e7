"""Bring about each reason of a wait on one machine, with real applications, and apply the change that ends it.

The reasons come from ``dlapp-why``, as users see them. Without a change are waits that no change of the request ends:
for other applications that come first, for the end of an application or a role, for a release (which is a command), for
a service, and above the number of applications that a user may have in the queue. The codes of nodes, labels, queues
and ApplicationMasters have no meaning on one machine, and all containers of a gang start at the same time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.applications import BIN, Done, kill_processes, processes, properties, wait_for
from tests.services.containers.dockerd import IMAGE, own_daemon
from tests.services.containers.nvml_stub import Part, StubDevice, seen_by_all, with_devices

pytestmark = [pytest.mark.slow, pytest.mark.root("to show the commands a node.yaml")]
END_S = 120.0


class Machine:
    """One machine with 1000 MiB and 4 vcores, its operator's file, and what runs there.

    Args:
        directory: of the test.
        monkeypatch: sets the variables of the commands.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.monkeypatch = directory, monkeypatch
        (directory / "etc" / "dlapp").mkdir(parents=True)
        self.set(cluster="local", local__memory="1000", local__vcores="4")
        self._made: list[str] = []

    def set(self, **keys: object) -> None:
        """Set configuration keys; ``__`` stands for the dot in a name."""
        for name, text in keys.items():
            self.monkeypatch.setenv(f"DLAPP_{name.upper().replace('__', '_')}", str(text))

    def operators_file(self, text: str) -> None:
        """Let the commands from now on see this node.yaml."""
        (self.directory / "etc" / "dlapp" / "node.yaml").write_text(text)

    def gpus(self, *devices: StubDevice) -> None:
        """Let all processes see GPUs."""
        for name, text in seen_by_all(self.directory, devices).items():
            self.monkeypatch.setenv(name, text)
        with_devices(self.directory, devices)

    def run(self, command: str, *words: str) -> Done:
        """Run a command, for which the operator's file is in /etc/dlapp, as for all that it starts."""
        etc = self.directory / "etc"
        within = (
            f"mount -t overlay -o lowerdir={etc}:/etc none /etc && "
            f'mount --bind {etc}/dlapp /etc/dlapp && exec "$@"'  # this one sees changes of the file
        )
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", within, "sh", BIN / command, *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=END_S,
            env=dict(os.environ),
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def submit(self, name: str, *options: str, script: str = "sleep 600", **sections: Mapping[str, object]) -> str:
        """Submit an application; its id."""
        return self.submit_file(properties(self.directory, script, name=name, **sections), *options)

    def submit_file(self, file: Path, *options: str) -> str:
        """Submit an application; its id."""
        done = self.run("dlapp-launcher", *options, str(file))
        assert done.code == 0, done.err
        self._made.append(next(line.partition(" = ")[2] for line in done.out.splitlines() if "DL App ID" in line))
        return self._made[-1]

    def running(self, name: str, *options: str, **resources: object) -> str:
        """Submit an application and wait until its program runs."""
        return self.until_running(self.submit(name, *options, resources=resources))

    def phases(self, one: str) -> list[str]:
        """Return the phases of the containers of an application, by CONTAINER_INDEX."""
        return [each["phase"] for each in json.loads(self.run("dlapp-status", "--json", one).out)["containers"]]

    def until_running(self, one: str) -> str:
        wait_for(f"{one} runs", lambda: set(self.phases(one)) == {"running"}, END_S)
        return one

    def why(self, one: str, code: str) -> dict[str, Any]:
        """Wait until an application waits for a reason; return it."""
        seen: list[str] = []

        def reason() -> dict[str, Any] | None:
            done = self.run("dlapp-why", "--json", one)
            found = json.loads(done.out or "{}").get("waiting")
            seen.append(done.err if found is None else f"{found['code']}: {found['message']}")
            return found if found is not None and found["code"] == code else None

        try:
            return wait_for(f"the reason {code}", reason, END_S)
        except AssertionError:
            raise AssertionError(f"not {code}: {list(dict.fromkeys(seen))}") from None

    def waits(self, code: str, message: str, change: str, **resources: object) -> None:
        """Submit an application that waits for this reason with this change; apply it, and see that it starts.

        Args:
            message: a pattern.
            change: without its option; empty: there is none.
        """
        one = self.submit("asks", resources=resources)
        found = self.why(one, code)
        assert re.search(message, found["message"]), found
        self.apply(one, found, change, **resources)

    def apply(self, one: str, found: Mapping[str, Any], change: str, **resources: object) -> None:
        """Submit an application that waits again, with the change, and see that it starts."""
        named, _, option = str(found["change"]).partition(": now")
        assert named == change, found
        self.kill(one)
        if change:
            key = re.fullmatch(r" \(--set (\S+)\)", option)
            assert key is not None, found
            self.kill(self.running("asks", "--set", key[1], **resources))

    def kill(self, *applications: str) -> None:
        for one in applications:
            assert self.run("dlapp-kill", one).code == 0
            self._made.remove(one)

    def end(self) -> None:
        for one in self._made:
            self.run("dlapp-kill", one)


@pytest.fixture
def machine(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    one = Machine(tmp_path, monkeypatch)
    yield one
    one.end()
    wait_for("the end of all processes", lambda: not processes(state_dir), END_S)


def test_a_full_machine_is_a_reason_and_with_less_the_application_starts(machine: Machine) -> None:
    """Use 500 of 1000 MiB and 3 of 4 vcores; ask for 768 MiB, for 2 vcores, and for three containers of 200 MiB."""
    first = machine.running("first", memory=500, vcores=3)
    holder = rf": {first} \(root\)$"
    machine.waits("nodes_full", f"needs 768 MiB of memory, 500 MiB free{holder}", "256 MiB of memory", memory=768)
    machine.waits("nodes_full", f"needs 2 vcores, 1 free{holder}", "1 vcore", vcores=2, memory=64)
    machine.kill(first)
    machine.running("first", memory=500)
    machine.waits("nodes_full", "needs 600 MiB of memory, 500 MiB free", "2 containers", containers=3, memory=200)


def test_others_that_come_first_are_a_reason_without_a_change(machine: Machine) -> None:
    """The second waits for room, and the third, which asks for the same, waits behind it."""
    first = machine.running("first", memory=600)
    second = machine.submit("second", resources={"memory": 500})
    machine.why(second, "nodes_full")
    third = machine.submit("third", resources={"memory": 500})
    found = machine.why(third, "nodes_full")
    assert (found["message"], [one["id"] for one in found["ahead"]][:1]) == ("waiting: 1 ahead", [second])
    assert found["change"] == ""
    machine.operators_file("queue: {user_queued: 1}\n")
    found = machine.why(third, "user_limit")
    assert found["message"] == "its user has more than 1 applications in the queue (queue.user_queued)"
    assert found["change"] == ""
    machine.kill(first)
    machine.until_running(second)
    machine.kill(second)
    machine.until_running(third)


def test_held_and_quarantined_gpus_are_reasons_with_a_change_that_works(
    machine: Machine,
) -> None:
    """Hold one of two GPUs, then both; then put one into quarantine."""
    machine.gpus(StubDevice(uuid="GPU-0"), StubDevice(uuid="GPU-1"))
    first = machine.running("first", gcores=1)
    machine.waits("nodes_full", "needs 2 gcores, 1 free|needs 2 GPUs, 1 free", "1 GPU", gcores=2)
    second = machine.running("second", gcores=1)
    machine.waits("nodes_full", "needs 1 GPU|needs 1 gcore", "no GPU", gcores=1)
    machine.kill(first, second)
    assert machine.run("dlapp-gpu", "quarantine", "gpu1").code == 0
    machine.waits("gpus_quarantined", r"gpu1 quarantined \(by root\)", "1 GPU", gcores=2)


def test_a_held_gpu_is_a_reason_and_with_a_slice_of_another_the_application_starts(machine: Machine) -> None:
    """Hold a whole GPU; the other one has a slice."""
    part = Part("MIG-0", "NVIDIA Test Card MIG 3g.40gb", 40 << 30)
    machine.gpus(StubDevice(uuid="GPU-0", mig=(part,)), StubDevice(uuid="GPU-1"))
    machine.running("first", gcores=1)
    machine.waits("nodes_full", "needs 1 ", "1 slice 3g.40gb", gcores=1)


def test_limits_of_a_user_are_reasons_and_below_them_the_application_starts(machine: Machine) -> None:
    """Let one user have two of three GPUs at a time, of which one is used, and ask for two; then only one at a time."""
    machine.gpus(*(StubDevice(uuid=f"GPU-{number}") for number in range(3)))
    machine.operators_file("queue: {user_gcores: 2}\n")
    first = machine.running("first", gcores=1)
    limit = r"its user has 1 of the 2 GPUs of one user at a time \(queue\.user_gcores\)"
    machine.waits("user_limit", limit, "1 GPU", gcores=2)
    one = machine.submit("asks", resources={"gcores": 2})
    machine.operators_file("queue: {user_gcores: 1}\n")
    machine.kill(first)
    never = machine.why(one, "never_fits")
    assert never["message"] == "asks for 2 GPUs, its user may have 1 at a time (queue.user_gcores)"
    machine.apply(one, never, "1 GPU", gcores=2)


def test_a_request_above_the_machines_size_is_refused_or_a_reason_with_a_change(
    machine: Machine, state_dir: Path
) -> None:
    """1001 MiB of 1000 are refused. 900 MiB wait for room, until the next runner has 600 MiB for all, of which 500 are
    used."""
    file = properties(machine.directory, "true", name="large", resources={"memory": 1001})
    refused = machine.run("dlapp-launcher", str(file))
    assert (refused.code, "1001 MiB" in refused.err) == (2, True), refused.err
    machine.running("first", memory=500)
    one = machine.submit("asks", resources={"memory": 900})
    machine.why(one, "nodes_full")
    machine.set(local__memory="600")
    kill_processes([each.pid for each in processes(state_dir) if each.role == "runner"])
    found = machine.why(one, "never_fits")
    assert found["message"] == "asked for 900 MiB of memory, this machine has 600 MiB of memory"
    machine.apply(one, found, "100 MiB of memory", memory=900)


def test_the_end_of_another_application_a_release_and_a_role_are_reasons_without_a_change(machine: Machine) -> None:
    first = machine.running("first", memory=64)
    after = machine.submit("after", application={"after": f"{first}:any"})
    found = machine.why(after, "dependency")
    assert (found["message"], found["change"]) == (f"waits for the end of {first} (any)", "")
    held = machine.submit("held", "--hold")
    assert machine.why(held, "held")["change"] in ("", f"dlapp-release {held}")
    assert machine.run("dlapp-release", held).code == 0
    machine.until_running(held)
    machine.kill(first)
    machine.until_running(after)
    machine.kill(after, held)
    roles = {
        "role trainer": {"script": "start.sh", "memory": 64},
        "role judge": {"command": "sleep 600", "memory": 64, "depends_on": "trainer:done"},
    }
    script = f"until [ -e {machine.directory}/go ]; do sleep 0.05; done"
    file = properties(machine.directory, script, name="roles", application={"gang": "none"}, **roles)
    file.write_text(file.read_text().replace("user_shell_script=start.sh\n", ""))
    one = machine.submit_file(file)
    found = machine.why(one, "dependency")
    assert (found["message"], found["change"]) == ("judge waits for trainer (done)", "")
    (machine.directory / "go").touch()
    wait_for("the judge runs", lambda: machine.phases(one) == ["ended", "running"], END_S)


def test_a_broken_driver_and_an_invalid_operators_file_are_reasons_until_repaired(
    machine: Machine,
) -> None:
    """NVIDIA's driver is not loaded any more (NVML's error 9) under an application that waits for a GPU."""
    device = StubDevice(uuid="GPU-0")
    machine.gpus(device)
    first = machine.running("first", gcores=1)
    one = machine.submit("asks", resources={"gcores": 1})
    machine.why(one, "nodes_full")
    with_devices(machine.directory, [device], init=9)
    machine.kill(first)
    assert "driver" in machine.why(one, "service_away")["message"].lower()
    with_devices(machine.directory, [device])
    machine.until_running(one)
    machine.kill(one)

    first = machine.running("first", memory=600)
    one = machine.submit("asks", resources={"memory": 500})
    machine.operators_file("queue: {user_gcores: many}\n")
    assert "queue.user_gcores: 'many' is not a whole number" in machine.why(one, "service_away")["message"]
    machine.operators_file("queue: {user_gcores: 4}\n")
    machine.kill(first)
    machine.until_running(one)


@pytest.mark.docker
def test_a_docker_that_is_away_is_a_reason_until_it_is_back(machine: Machine) -> None:
    """Stop dockerd under an application that waits for room for its container, and make room."""
    with own_daemon() as daemon:
        machine.set(runtime__docker__host=daemon.host, runtime__docker__network="none")
        first = machine.running("first", memory=600)
        one = machine.submit("asks", application={"docker_image": IMAGE}, resources={"memory": 500})
        machine.why(one, "nodes_full")
        daemon.terminate()
        machine.kill(first)
        found = machine.why(one, "service_away")
        assert (f"Docker at {daemon.host}" in found["message"], found["change"]) == (True, "")
        daemon.start()
        machine.until_running(one)
        machine.kill(one)
