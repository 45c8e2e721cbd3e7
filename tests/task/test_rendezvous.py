"""Tasks whose payloads find each other: addresses, ports and the files of the roster."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import DlappError
from dlapp.node_policy import NodePolicy
from dlapp.system import locks
from dlapp.system.network.port_range import PortRange
from dlapp.system.network.ports import lock_ports
from dlapp.task.rendezvous import Rendezvous
from dlapp.value import replace
from dlapp.values.launch_spec import DockerSettings, LaunchSpec
from dlapp.values.messages import Fault, Stop
from dlapp.values.roster import Member, Roster
from dlapp.values.spec import Framework
from tests.runtime.driver import wait_until
from tests.services.containers.dockerd import IMAGE, Dockerd
from tests.services.ports import free_range
from tests.task.fake_am import FakeAm, workspace_archive

UNTIL_NEXT = 'echo ready; until grep -q \'"version": 1\' "$DLAPP_ROSTER"; do sleep 0.02; done; echo next'


def fake_am(place: Path, text: str, **assignment: Any) -> FakeAm:
    packed = workspace_archive(place, {"run.sh": text})
    return FakeAm(place / "containers", **(packed | {"has_roster": True} | assignment))


def roster(version: int = 0, generation: int = 0) -> Roster:
    members = (
        Member(role="worker", role_index=0, index=0, host="a", address="10.0.0.1", ports=(20_001,)),
        Member(role="worker", role_index=1, index=1, host="b", address="2001:db8::7", ports=(20_002,)),
    )
    return Roster(generation=generation, version=version, members=members)


def start(am: FakeAm, place: Path, host: str = "unix:///nowhere", network: str = "none") -> None:
    am.start(docker=DockerSettings(host, network, lock_dir=str(place / "locks")))


def rendezvous(place: Path, am: FakeAm, **changes: Any) -> Rendezvous:
    launch = LaunchSpec(
        am.container_id,
        "http://127.0.0.1:1",
        "",
        {},
        {},
        DockerSettings("unix:///nowhere", "none", lock_dir=str(place / "locks")),
    )
    return Rendezvous(am.assignment, launch, NodePolicy(**changes), str(am.home))


# ---- whole tasks ----


def test_a_payload_starts_once_the_roster_exists_and_finds_its_files(place: Path) -> None:
    with fake_am(place, 'cat "$DLAPP_ROSTER" "$DLAPP_DIR/hosts"; ls -A "$DLAPP_DIR" | sort', ports=2) as am:
        start(am, place)
        am.wait_until(lambda: any(report.ports for report in am.reports))
        am.order(go=True)
        reported = am.last
        assert reported.address == "127.0.0.1"
        assert len(set(reported.ports)) == 2
        assert set(reported.ports) <= set(range(20_000, 30_000))
        am.order(roster=7)
        am.wait_until(lambda: "no roster yet" in am.log())  # it is asked for again
        assert not (am.home / "stdout").exists()
        am.roster = roster()
        assert am.result().fault is Fault.NONE, am.log()
        first, *hosts = am.printed().decode().splitlines()
        assert json.loads(first) == {
            "generation": 0,
            "version": 0,
            "members": [
                {"role": "worker", "role_index": 0, "index": 0, "host": "a", "address": "10.0.0.1", "ports": [20_001]},
                {
                    "role": "worker",
                    "role_index": 1,
                    "index": 1,
                    "host": "b",
                    "address": "2001:db8::7",
                    "ports": [20_002],
                },
            ],
        }
        assert hosts[:2] == ["10.0.0.1\tworker-0", "2001:db8::7\tworker-1"]
        assert {"hosts", "roster.json"} <= set(hosts[2:])


@pytest.mark.parametrize("script", [True, False])
def test_a_payload_gets_the_addresses_of_its_peers_as_arguments(place: Path, script: bool) -> None:
    args = ("--w={hosts:worker}", "{master}", "{port} {address}", "${master}", "{hosts:ps}{index}")
    command = ("sh", "-c", 'printf "%s\\n" "$@"', "{master}")
    program = {"args": args, "master": 1} if script else {"script": "", "command": command, "args": args, "master": 1}
    with fake_am(place, 'printf "%s\\n" "$@"', ports=1, **program) as am:
        am.roster = roster()
        start(am, place)
        am.order(roster=1)
        assert am.result().fault is Fault.NONE, am.log()
        assert am.printed().decode().splitlines() == [
            "--w=10.0.0.1:20001,[2001:db8::7]:20002",
            "[2001:db8::7]:20002",
            f"{am.last.ports[0]} 127.0.0.1",
            "${master}",
            "{index}",
        ]


def test_a_task_without_peers_requests_no_roster_and_locks_no_port(place: Path) -> None:
    with fake_am(place, 'echo "[$DLAPP_ROSTER]"', has_roster=False) as am:
        start(am, place)
        assert am.result().fault is Fault.NONE
        assert am.printed() == b"[]\n"
        assert {(report.address, report.ports) for report in am.reports} == {(None, ())}
        assert not (place / "locks").exists()


def test_a_later_roster_replaces_the_file_while_the_payload_runs(place: Path) -> None:
    with fake_am(place, UNTIL_NEXT) as am:
        am.roster = roster()
        start(am, place)
        am.order(roster=1)
        wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n", "it runs")
        am.roster = roster(1)
        am.order(roster=2)
        assert am.result().fault is Fault.NONE
        assert am.printed() == b"ready\nnext\n"
        assert {report.roster_version for report in am.reports} == {0, 1}


@pytest.mark.proves("roster-files")
@pytest.mark.parametrize(
    ("planted", "is_refused"),
    [
        ('rm "$DLAPP_ROSTER"; ln -s "$VICTIM" "$DLAPP_ROSTER"', False),
        ('rm "$DLAPP_ROSTER"; mkdir -p "$DLAPP_ROSTER/x"', True),
        ('echo wrong > "$DLAPP_ROSTER"', False),
        ('rm -r "$DLAPP_DIR"; ln -s "$VICTIM_DIR" "$DLAPP_DIR"', True),
        ('chmod 777 "$DLAPP_DIR"', True),
    ],
)
def test_a_payload_that_replaces_its_files_harms_only_itself(place: Path, planted: str, is_refused: bool) -> None:
    (place / "victim").mkdir()
    (place / "victim" / "roster.json").write_text("untouched")
    with fake_am(place, f"{planted}; echo ready; while [ ! -e finish ]; do sleep 0.02; done") as am:
        am.roster = roster()
        am.start(
            docker=DockerSettings("unix:///nowhere", "none", lock_dir=str(place / "locks")),
            env={"VICTIM": str(place / "victim" / "roster.json"), "VICTIM_DIR": str(place / "victim")},
        )
        am.order(roster=1)
        wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n", "it runs")
        am.roster = roster(1)
        am.order(roster=2)
        file = am.home / "run" / "roster.json"
        if is_refused:
            am.wait_until(lambda: "the payload does not get the roster of version 1" in am.log())
        else:
            am.wait_until(lambda: not file.is_symlink() and '"version": 1' in file.read_text())
        (am.home / "workspace" / "finish").touch()
        assert am.result().fault is Fault.NONE, am.log()
        assert (place / "victim" / "roster.json").read_text() == "untouched"
        assert os.listdir(place / "victim") == ["roster.json"]
        assert am.log().count("does not get the roster") == int(is_refused)


def test_tasks_of_one_host_have_other_ports_and_those_of_a_killed_one_are_free(place: Path) -> None:
    locks = str(place / "locks")
    with fake_am(place / "a", "exec sleep 1000", ports=3) as first, fake_am(place / "b", "true", ports=3) as second:
        for am in (first, second):
            am.roster = roster()
            start(am, place)
            am.wait_until(lambda item=am: any(report.ports for report in item.reports))  # type: ignore[misc]
        mine, its = first.last.ports, second.last.ports
        assert len({*mine, *its}) == 6
        first.order(roster=1)
        wait_until(lambda: "running" in first.log(), "the payload runs")
        second.stop(Stop.NOW)
        second.result()
        assert first.task is not None
        own = PortRange(min(mine), min(mine))
        with pytest.raises(DlappError, match="only 0 are free"):
            lock_ports(1, own, locks, begin=0)
        first.task.kill()

        def is_free() -> bool:
            try:
                lock_ports(1, own, locks, begin=0).close()
            except DlappError:
                return False
            return True

        wait_until(is_free, "the kernel has freed the locks")


def test_a_port_taken_by_another_program_is_a_node_fault(place: Path) -> None:
    with fake_am(place, "echo it ran", ports=1) as am:
        start(am, place)
        am.wait_until(lambda: any(report.ports for report in am.reports))
        port = am.last.ports[0]
        with socket.create_server(("127.0.0.1", port)):
            am.roster = roster()
            am.order(roster=1)
            result = am.result()
        assert result.fault is Fault.NODE
        assert f"another program listens on port {port}, which was locked for this container" in result.message


_MEMBER = {"role": "worker", "role_index": 0, "index": 0, "host": "a", "address": "10.0.0.1", "ports": [20_001]}


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        "roster",
        {"generation": 0, "version": 0},
        {"generation": 0, "version": 0, "members": [_MEMBER | {"address": "worker-0.example; rm -r /"}]},
        {"generation": 0, "version": 0, "members": [_MEMBER | {"ports": [70_000]}]},
        {"generation": 0, "version": 0, "members": [_MEMBER | {"role": "../../x"}]},
        {"generation": -1, "version": 0, "members": [_MEMBER]},
    ],
    ids=["list", "text", "no members", "no address", "no port", "no role", "no generation"],
)
def test_a_wrong_roster_starts_no_payload_and_is_read_again(place: Path, wrong: object) -> None:
    with fake_am(place, "echo it ran", ports=1) as am:
        am.wrong_roster = wrong
        start(am, place)
        am.wait_until(lambda: any(report.ports for report in am.reports))
        am.order(go=True, roster=1)
        am.wait_until(lambda: am.log().count("no roster yet") > 1)
        assert not (am.home / "stdout").exists()
        am.wrong_roster, am.roster = None, roster()
        assert am.result().fault is Fault.NONE, am.log()
        assert am.printed() == b"it ran\n"


def test_a_roster_without_the_container_itself_is_named_and_starts_no_payload(place: Path) -> None:
    with fake_am(place, "echo it ran", ports=1, framework=Framework.PYTORCH) as am:
        am.roster = Roster(generation=0, version=0, members=roster().members[1:])
        start(am, place)
        am.order(roster=1)
        result = am.result()
        assert result.fault is Fault.NODE
        assert "container 0 is not in the roster" in result.message
        assert "see dlapp.log" not in result.message
        assert am.printed() == b""


def test_a_task_without_free_ports_names_the_range_and_blames_its_node(place: Path) -> None:
    one = lock_ports(1, PortRange(20_000, 29_999), str(place / "locks"), begin=0)
    assert locks.try_lock(one.fd, 20_000, 10_000)
    with fake_am(place, "echo it ran", ports=2) as am:
        start(am, place)
        result = am.result()
    one.close()
    assert result.fault is Fault.NODE
    assert "of the ports 20000-29999 only 0 are free on this machine, and 2 are needed" in result.message


@pytest.mark.docker
def test_a_payload_in_docker_finds_the_roster_and_its_next_version(place: Path, dockerd: Dockerd) -> None:
    text = f"echo $DLAPP_ROSTER; cat /dlapp/run/hosts\n{UNTIL_NEXT}"
    with fake_am(place, text, docker_image=IMAGE, ports=1, network="none") as am:
        am.roster = roster()
        start(am, place, dockerd.host)
        am.order(roster=1)
        wait_until(lambda: (am.home / "stdout").exists() and b"ready" in am.printed(), "it runs")
        am.roster = roster(1)
        am.order(roster=2)
        assert am.result().fault is Fault.NONE, am.log()
        assert am.printed().decode().split() == [
            *("/dlapp/run/roster.json", "10.0.0.1", "worker-0", "2001:db8::7", "worker-1"),
            *("ready", "next"),
        ]


@pytest.mark.docker
def test_a_payload_in_docker_resolves_the_names_of_the_others_and_of_its_host(place: Path, dockerd: Dockerd) -> None:
    text = f"cat /etc/hosts\n{UNTIL_NEXT}\ncat /etc/hosts; ! touch /etc/hosts"
    with fake_am(place, text, docker_image=IMAGE, ports=1, network="host") as am:
        am.roster = roster()
        start(am, place, dockerd.host)
        am.order(roster=1)
        wait_until(lambda: (am.home / "stdout").exists() and b"ready" in am.printed(), "it runs")
        first, second = roster(1).members
        am.roster = Roster(generation=0, version=1, members=(replace(first, address="10.0.0.77"), second))
        am.order(roster=2)
        assert am.result().fault is Fault.NONE, am.log()
        before, _, after = am.printed().decode().partition("ready\nnext\n")
    own = Path("/etc/hosts").read_text()
    assert before == f"{own}10.0.0.1\tworker-0\n2001:db8::7\tworker-1\n"
    assert after == f"{own}10.0.0.77\tworker-0\n2001:db8::7\tworker-1\n"


# ---- the place of a container ----


def leave_closing(port: int) -> None:
    """Close a connection first at the side of a port: the kernel keeps the port for a minute."""
    with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
        server.accept()[0].close()


def test_an_exhausted_range_is_named_with_its_key(place: Path) -> None:
    first = free_range(3)
    with fake_am(place, "true", ports=3) as am, socket.create_server(("127.0.0.1", first + 1)):
        one = rendezvous(place, am, ports=PortRange(first, first + 2))
        words = rf"of the ports {first}-{first + 2} only 2 are free .* \(ports of /etc/dlapp/node"
        with pytest.raises(DlappError, match=words):
            one.reserve_ports()


def test_ports_that_were_taken_are_changed_before_the_next_generation(place: Path) -> None:
    begin = free_range(2)
    with fake_am(place, "true", ports=1) as am:
        one = rendezvous(place, am, ports=PortRange(begin, begin + 1))
        one.reserve_ports()
        (first,) = one.ports
        one.reserve_ports()
        assert one.ports == (first,)
        with socket.create_server(("127.0.0.1", first)):
            one.reserve_ports()
            second = 2 * begin + 1 - first
            assert one.ports == (second,)
        leave_closing(second)
        one.reserve_ports()
        assert one.ports == (first,)
        leave_closing(first)
        one.reserve_ports()
        assert one.ports == (first,), "none is better"
        one.close()


def test_the_address_is_that_of_the_interface_which_the_operator_names(place: Path) -> None:
    with fake_am(place, "true") as am:
        one = rendezvous(place, am, network_interface="lo")
        one.reserve_ports()
        assert (one.address, one.interface, one.ports, one.lock_fds) == ("127.0.0.1", "lo", (), ())
        other = rendezvous(place, am, network_interface="nosuch0")
        with pytest.raises(
            DlappError, match=r"no network interface nosuch0 with an address \(network_interface of /etc"
        ):
            other.reserve_ports()
