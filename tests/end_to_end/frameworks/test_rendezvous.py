"""Applications whose containers find each other by the roster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.applications import BIN, Done, launch, status, wait_for
from tests.end_to_end.test_applications import END_S, id_of, printed, waited
from tests.end_to_end.test_roles import file_of
from tests.engines import Engine, on_yarn_when_full

EXCHANGE = """
exec python3 - <<'END'
import json, os, socket, threading

with open(os.environ["DLAPP_ROSTER"]) as file:
    roster = json.load(file)
own = roster["members"][int(os.environ["CONTAINER_INDEX"])]
family = socket.AF_INET6 if ":" in own["address"] else socket.AF_INET
heard = []


def serve(port):
    with socket.create_server((own["address"], port), family=family) as server:
        ready.wait()
        for _ in roster["members"]:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.makefile().readline().strip())


ready = threading.Barrier(len(own["ports"]) + 1)
threads = [threading.Thread(target=serve, args=(port,)) for port in own["ports"]]
for thread in threads:
    thread.start()
ready.wait()
for member in roster["members"]:
    for port in member["ports"]:
        while True:
            try:
                with socket.create_connection((member["address"], port)) as connection:
                    connection.sendall(f"{own['role']}-{own['role_index']}\\n".encode())
                break
            except ConnectionRefusedError:
                continue
for thread in threads:
    thread.join()
if [os.environ["DLAPP_GENERATION"], os.environ["CONTAINER_INDEX"]] == [os.environ.get("FAIL_IN"), "1"]:
    raise SystemExit("this rank fails")
print(json.dumps([os.environ["DLAPP_GENERATION"], roster, sorted(heard)]))
print(open(os.environ["DLAPP_DIR"] + "/hosts").read().replace("\\t", " "), end="")
END
"""


def test_containers_exchange_bytes_over_the_ports_of_the_roster(engine: Engine, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        "left]\ninstances=2\nscript=exchange.sh\nports=2\n",
        "right]\nscript=exchange.sh\nports=1\n",
        exchange=EXCHANGE,
    )
    done = waited(file)
    application = id_of(done)
    assert done.code == 0, done.err + done.out + json.dumps(status(application)["containers"])
    names = ["left-0", "left-1", "right-0"]
    first: object = None
    for index, name in enumerate(names):
        lines = printed("--container", name.replace("-", "_"), "--stdout", application)
        generation, roster, heard = json.loads(lines[0])
        first = first or roster
        assert (generation, roster["generation"], roster["version"], roster) == ("0", 0, 0, first)
        members = roster["members"]
        assert [(member["role"], member["role_index"], member["index"]) for member in members] == [
            ("left", 0, 0),
            ("left", 1, 1),
            ("right", 0, 2),
        ]
        assert heard == sorted(names * len(members[index]["ports"]))
        assert lines[1:] == [f"{one['address']} {each}" for one, each in zip(members, names, strict=True)]
        ports = [port for member in members for port in member["ports"]]
        assert len(ports) == len(set(ports)) == 5


ONLY_IPV6 = """\
ip link set lo up
ip link add six type bridge
ip -6 address add fd00:6::1/64 dev six nodad
ip link set six up
cp -a /etc "$0"
mkdir -p "$0/dlapp"
echo "network_interface: six" >"$0/dlapp/node.yaml"
mount --bind "$0" /etc
exec "$@"
"""
"""Runs a command in a network of its own, whose interface ``six`` has no address of IPv4; the operator names it."""


def over_ipv6(place: Path, file: Path) -> Done:
    """Run an application to its end on the embedded engine, all in a network whose containers meet over IPv6.

    Args:
        place: a directory for what is in /etc then.
        file: the properties file.
    """
    within = ["unshare", "--net", "--mount", "sh", "-ec", ONLY_IPV6]
    tried = subprocess.run([*within, str(place / "tried"), "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no network of IPv6 alone: {tried.stderr.strip()}")
    command = [*within, str(place / "etc"), str(BIN / "dlapp-launcher"), "--wait", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=END_S)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.root("to have a network without IPv4")
@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_containers_exchange_bytes_over_ipv6(engine: Engine, tmp_path: Path) -> None:
    file = file_of(tmp_path, "pair]\ninstances=2\nscript=exchange.sh\nports=1\n", exchange=EXCHANGE)
    done = over_ipv6(tmp_path, file)
    assert done.code == 0, done.err + done.out
    for name in ("pair_0", "pair_1"):
        first, *hosts = printed("--container", name, "--stdout", id_of(done))
        _, roster, heard = json.loads(first)
        assert [member["address"] for member in roster["members"]] == ["fd00:6::1"] * 2
        assert heard == ["pair-0", "pair-1"]
        assert hosts == ["fd00:6::1 pair-0", "fd00:6::1 pair-1"]


@pytest.mark.slow
@on_yarn_when_full
def test_a_gang_that_is_restarted_exchanges_bytes_again(engine: Engine, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        "pair]\ninstances=2\nscript=exchange.sh\nports=1\nretries=1\nenv.FAIL_IN=0\n",
        exchange=EXCHANGE,
    )
    done = waited(file)
    application = id_of(done)
    assert done.code == 0, done.err + done.out + json.dumps(status(application)["containers"])
    rosters = []
    for name in ("pair_0", "pair_1"):
        generation, roster, heard = json.loads(printed("--container", name, "--stdout", application)[0])
        assert (generation, roster["generation"], roster["version"]) == ("1", 1, 0)
        assert heard == ["pair-0", "pair-1"]
        rosters.append(roster)
    assert rosters[0] == rosters[1]


REPLACED = """
exec python3 - <<'END'
import json, os, socket, sys, time


def roster():
    with open(os.environ["DLAPP_ROSTER"]) as file:
        return json.load(file)


first = roster()
index = int(os.environ["CONTAINER_INDEX"])
own = first["members"][index]
place = os.environ["PLACE"]
open(f"{place}/up-{index}", "w").close()
if index == 1 and not os.path.exists(f"{place}/again"):
    while not os.path.exists(f"{place}/again"):
        time.sleep(0.02)
    sys.exit("this one fails")
if index == 1:
    with socket.create_server((own["address"], own["ports"][0])) as server:
        print(server.accept()[0].makefile().readline(), end="")
    sys.exit()
while (now := roster())["members"][1] == first["members"][1]:
    time.sleep(0.02)
assert now["version"] > first["version"] == 0, (first, now)
assert (now["generation"], now["members"][0]) == (0, own)
while True:
    try:
        with socket.create_connection((now["members"][1]["address"], now["members"][1]["ports"][0])) as connection:
            connection.sendall(b"hello to the next one\\n")
        break
    except ConnectionRefusedError:
        continue
END
"""


@pytest.mark.sampled(2)
@on_yarn_when_full
@pytest.mark.parametrize("master_dies", [False, True], ids=["", "after-its-master"])
def test_a_running_container_gets_the_address_of_a_replacement(
    engine: Engine, tmp_path: Path, *, master_dies: bool
) -> None:
    file = file_of(
        tmp_path,
        f"pair]\ninstances=2\nscript=replaced.sh\nports=1\nretries=1\non_failure=restart\nenv.PLACE={tmp_path}\n",
        replaced=REPLACED,
    )
    application = launch(file)
    wait_for("both run", lambda: all((tmp_path / f"up-{index}").exists() for index in (0, 1)), END_S)
    if master_dies:
        engine.kill_master(application)
        wait_for("the next master", lambda: status(application)["attempt"] == 2, END_S)
    (tmp_path / "again").touch()
    wait_for("its end", lambda: status(application)["state"] == "FINISHED", END_S)
    end = status(application)
    assert end["final_status"] == "SUCCEEDED", end
    assert printed("--container", "pair_1", "--stdout", application) == ["hello to the next one"]
