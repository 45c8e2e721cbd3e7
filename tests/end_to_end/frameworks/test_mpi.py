"""Open MPI under framework=mpi, on every engine: mpirun needs no names of hosts, no ports and no ssh."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from dlapp.errors import Denied
from dlapp.net.control_client import ControlConnection
from dlapp.values.access import TOOLS, derive_token, new_secret
from dlapp.values.ids import ContainerId
from dlapp.values.messages import MpiLaunch, Phase, Report
from dlapp.values.serialization import to_json
from tests.applications import ended, launch, open_files, run, status, wait_for
from tests.end_to_end.frameworks.test_frameworks import alone, losses, waited, workspace
from tests.end_to_end.test_applications import END_S, id_of, printed
from tests.engines import Engine, on_yarn_when_full
from tests.services.containers.dockerd import Dockerd
from tests.services.containers.host_images import MPI_IMAGE, import_mpi_image
from tests.services.debian import PYTHON

HELLO = "hello() { mpirun sh -c 'echo '$1' $OMPI_COMM_WORLD_RANK in $CONTAINER_INDEX: $(pwd)'; }\n"


@pytest.fixture(scope="session", autouse=True)
def mpi() -> None:
    """Open MPI, and mpi4py for `PYTHON`; tests.services.install brings them."""
    if subprocess.run([PYTHON, "-c", "import mpi4py, numpy"], capture_output=True).returncode != 0:
        pytest.skip(f"no MPI for {PYTHON} (package python3-mpi4py)")
    if shutil.which("mpirun", path="/usr/bin:/bin") is None:
        pytest.skip("no mpirun (package openmpi-bin)")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example's program with its data in the workspace, on a machine that is large enough for all containers."""
    monkeypatch.setenv("DLAPP_LOCAL_VCORES", "8")
    workspace(tmp_path, "mpi")
    return tmp_path


def file_of(
    place: Path, engine: Engine, program: str, resources: str, *, memory: str = "512m", has_output: bool = True
) -> Path:
    """Write a properties file; a program of several lines is a script.

    More processes than cores must not keep them busy while they wait.
    """
    if "\n" in program:
        (place / "w/run.sh").write_text(f"#!/bin/sh\n{program}")
        (place / "w/run.sh").chmod(0o755)
        program = "./run.sh"
    (place / "f.properties").write_text(
        f"[application]\nappname=ring\nuser_dev_workspace_path=w\ncommand={program}\nframework=mpi\nkill_grace=2s\n"
        "env.PATH=/usr/bin:/bin\nenv.OMPI_MCA_mpi_yield_when_idle=1\n"
        f"[resources]\nmemory={memory}\ngcores=0\n{resources}"
        + (f"[to_hdfs]\noutput_path=output\nhdfs={engine.root}/mpi\n" if has_output else "")
    )
    return place / "f.properties"


HOROVOD = """\
import os

from mpi4py import MPI

world = MPI.COMM_WORLD
local = world.Split_type(MPI.COMM_TYPE_SHARED)  # what hvd.local_rank() is, the number of the process's GPU
across = world.Split(local.rank)
total = world.allreduce(world.rank + 1)
line = f"rank {world.rank} of {world.size} local {local.rank} of {local.size} across {across.size} sum {total}\\n"
os.write(1, line.encode())  # at once: mpirun mixes what processes write in pieces
"""
"""As Horovod finds its processes. Source: horovod/common/mpi/mpi_context.cc (0.28)."""


@on_yarn_when_full
def test_a_process_of_horovod_has_its_number_within_its_container(engine: Engine, place: Path) -> None:
    (place / "w/hvd.py").write_text(HOROVOD)
    file = file_of(place, engine, f"mpirun {PYTHON} hvd.py", "containers=2\nvcores=2\n", has_output=False)
    done = waited(file)
    assert done.code == 0, "\n".join((done.err, done.out, *printed("--stderr", id_of(done))))
    assert sorted(printed("--container", "0", "--stdout", id_of(done))) == [
        f"rank {n} of 4 local {n % 2} of 2 across 2 sum 10" for n in range(4)
    ]


def train(engine: Engine, place: Path, containers: int) -> None:
    """Train with a process in each container, and compare with one process."""
    command = f"mpirun {PYTHON} train.py --epochs 3"
    done = waited(file_of(place, engine, command, f"containers={containers}\n", memory="1700m"))
    application = id_of(done)
    assert done.code == 0, "\n".join((done.err, done.out, *printed("--stderr", application)))
    output = printed("--container", "0", "--stdout", application)
    assert sorted(re.findall(r"rank (. of .) in container (.)", "\n".join(output))) == [
        (f"{n} of {containers}", str(n)) for n in range(containers)
    ]
    assert losses(engine, "mpi") == pytest.approx(alone(place, 3), abs=1e-9)
    if engine.hadoop is not None and containers == 3:  # they have no room on one node of the cluster
        assert len({container["host"] for container in status(application)["containers"]}) == 2


@pytest.mark.slow
@on_yarn_when_full
def test_a_ring_of_two_containers_trains_the_same_model_as_one(engine: Engine, place: Path) -> None:
    train(engine, place, 2)


@on_yarn_when_full
def test_a_ring_of_three_containers_trains_the_same_model_as_one(engine: Engine, place: Path) -> None:
    train(engine, place, 3)


def process_of(application: str, *, rank: int) -> int:
    """Return the process of a rank, by its number here: its own may be of a namespace."""
    wanted = {f"DLAPP_APP_ID={application}".encode(), f"OMPI_COMM_WORLD_RANK={rank}".encode()}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if wanted <= set(Path("/proc", pid, "environ").read_bytes().split(b"\0")):
                return int(pid)
    raise AssertionError(f"rank {rank} of {application} does not run")


def listening(pids: list[int]) -> set[int]:
    """Return the ports on which processes listen for other hosts."""
    sockets = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            sockets.update(open_files(pid))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            address, _, port = local.partition(":")
            if state == "0A" and not address.strip("0") and f"socket:[{inode}]" in sockets:
                found.add(int(port, 16))
    return found


@pytest.mark.slow
@on_yarn_when_full
def test_mpirun_daemons_and_processes_listen_only_on_the_ports_of_their_container(engine: Engine, place: Path) -> None:
    command = f"mpirun {PYTHON} train.py --epochs 1000000"
    application = launch(file_of(place, engine, command, "containers=2\nvcores=2\n"))
    wait_for("all of them train", lambda: "epoch 0:" in "".join(printed("--stdout", application)), END_S)
    seen: list[tuple[set[int], set[int]]] = []  # of each process: where it listens, and the ports of its container

    def all_listen() -> bool:
        seen.clear()
        for pid in [process.pid for process in engine.processes(application)]:
            with contextlib.suppress(OSError):
                found = dict(
                    text.partition("=")[::2]
                    for text in Path(f"/proc/{pid}/environ").read_text().split("\0")
                    if "=" in text
                )
                if "DLAPP_ROSTER" in found and (ports := listening([pid])):
                    members = json.loads(Path(found["DLAPP_ROSTER"]).read_text())["members"]
                    seen.append((ports, set(members[int(found["CONTAINER_INDEX"])]["ports"])))
        return len(seen) == 7

    # The kernel's table is read in parts, and may lack a line while others come and go.
    wait_for("mpirun, two daemons and four processes listen", all_listen, END_S)
    assert all(ports <= of_roster for ports, of_roster in seen), seen
    assert run("dlapp-kill", application).code == 0


@pytest.mark.slow
@on_yarn_when_full
def test_a_process_that_dies_restarts_all_of_them(engine: Engine, place: Path) -> None:
    text = "if [ $DLAPP_GENERATION = 0 ]; then epochs=1000000; else epochs=3; fi\n"
    text += f"mpirun {PYTHON} train.py --epochs $epochs\n"
    application = launch(file_of(place, engine, text, "containers=3\nretries=1\n"))

    wait_for("all of them train", lambda: "epoch 1:" in "".join(printed("--stdout", application)), END_S)
    os.kill(process_of(application, rank=2), signal.SIGKILL)
    seen = ended(application, END_S)
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
    assert losses(engine, "mpi") == pytest.approx(alone(place, 3), abs=1e-9)


@pytest.mark.slow
@on_yarn_when_full
@pytest.mark.parametrize("who", ["orted", "member.sh"])
def test_a_daemon_or_a_container_that_dies_restarts_all_of_them(engine: Engine, place: Path, who: str) -> None:
    text = "if [ $DLAPP_GENERATION = 0 ]; then mpirun sleep 600; else mpirun true; fi\n"
    application = launch(file_of(place, engine, text, "containers=2\nretries=1\n", has_output=False))
    wait_for("it runs", lambda: _found(application, b"sleep"), END_S)

    os.kill(_found(application, who.encode())[0], signal.SIGKILL)
    seen = ended(application, END_S)
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]


def _found(application: str, word: bytes) -> list[int]:
    """Return the processes of container 1 whose command has a word."""
    wanted = {f"DLAPP_APP_ID={application}".encode(), b"CONTAINER_INDEX=1"}
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            place = Path("/proc", pid)
            if word in place.joinpath("cmdline").read_bytes() and wanted <= set(
                place.joinpath("environ").read_bytes().split(b"\0")
            ):
                found.append(int(pid))
    return found


@pytest.mark.slow
@on_yarn_when_full
def test_a_script_may_start_mpirun_several_times_and_in_a_directory_below(engine: Engine, place: Path) -> None:
    (place / "w/sub").mkdir()
    (place / "w/sub/file").touch()
    text = (
        f"{HELLO}hello first; mpirun false && exit 9\n"
        "(export OMPI_MCA_oob_tcp_dynamic_ipv4_ports=0\n"
        "hello a & export OMPI_MCA_orte_tmpdir_base=$(mktemp -d); hello b & wait)\n"
        "cd sub; mpirun -n 2 ls; hello below; mpirun no-such-program >&2 || echo failed\n"
    )
    application = launch(file_of(place, engine, text, "containers=2\n", has_output=False))
    seen = ended(application, END_S)
    assert seen["final_status"] == "SUCCEEDED", printed("--stderr", application)
    output = printed("--container", "0", "--stdout", application)
    expected = [f"{which} {n} in {n}: workspace" for which in ("first", "a", "b") for n in range(2)]
    expected += [*(f"below {n} in {n}: sub" for n in range(2)), "file", "file", "failed"]
    errors = "".join(printed("--stderr", application))
    assert sorted(re.sub(":.*/", ": ", line) for line in output) == sorted(expected), errors
    places = {line.partition(": ")[2] for line in output if line.startswith("first")}
    assert len(places) == 2  # each process in the workspace of its own container


@pytest.mark.slow
@on_yarn_when_full
def test_the_first_role_starts_processes_in_the_others_but_not_in_services(engine: Engine, place: Path) -> None:
    command = "mpirun sh -c 'echo $DLAPP_ROLE $DLAPP_ROLE_INDEX of $OMPI_COMM_WORLD_SIZE'"
    file = file_of(place, engine, command, "[role start]\n[role worker]\ninstances=2\nvcores=2\n", has_output=False)
    with file.open("a") as text:
        text.write("[role board]\nservice=true\ncommand=sh -c 'echo mine; exec sleep 600'\n")
    done = waited(file)
    assert done.code == 0, done.err + done.out
    application = id_of(done)
    assert sorted(printed("--container", "start_0", "--stdout", application)) == [
        "start 0 of 5",
        *["worker 0 of 5"] * 2,
        *["worker 1 of 5"] * 2,
    ]
    assert printed("--container", "board_0", "--stdout", application) == ["mine"]


@pytest.mark.slow
@on_yarn_when_full
def test_a_container_that_cannot_start_a_daemon_is_named(engine: Engine, place: Path) -> None:
    text = "OMPI_MCA_orte_launch_agent=no-such-orted mpirun -H dlapp-container-1 true\n"
    application = launch(file_of(place, engine, text, "containers=2\n", has_output=False))
    seen = ended(application, END_S)
    assert seen["final_status"] == "FAILED"
    assert "container 0" in seen["diagnostics"]
    message = "\n".join(printed("--container", "0", "--stderr", application))
    assert "dlapp: the daemon of container 1 ended with exit code 127; its stderr may say why" in message
    assert "no-such-orted" in "\n".join(printed("--container", "1", "--stderr", application))


@pytest.mark.slow
@on_yarn_when_full
def test_processes_have_the_grace_time_to_end(engine: Engine, place: Path) -> None:
    (place / "w/wait.sh").write_text(
        "#!/bin/sh\ntrap 'sleep 3; mkdir -p output; echo saved >output/$OMPI_COMM_WORLD_RANK; exit 0' TERM\n"
        "echo ready\nwhile :; do sleep 0.05; done\n"
    )
    (place / "w/wait.sh").chmod(0o755)
    file = file_of(place, engine, "mpirun ./wait.sh", "containers=2\n")
    file.write_text(file.read_text().replace("kill_grace=2s", "kill_grace=60s"))
    application = launch(file)
    wait_for("both wait", lambda: printed("--container", "0", "--stdout", application).count("ready") == 2, END_S)
    wait_for("both run", lambda: "running 2 of 2" in status(application)["phase"], END_S)
    assert run("dlapp-softkill", application).code == 0
    seen = ended(application, END_S)
    assert (seen["final_status"], seen["cause"]) == ("KILLED", "soft-killed"), seen["diagnostics"]
    assert sorted(engine.tree("mpi").items()) == [("0/0", "saved\n"), ("1/1", "saved\n")]


@pytest.mark.slow
@on_yarn_when_full
def test_processes_run_on_without_an_applicationmaster_and_the_next_one_starts_more(
    engine: Engine, place: Path
) -> None:
    begin, more = place / "begin", place / "more"
    wait = "until [ -e {} ]; do sleep 0.05; done"
    text = f"mpirun sh -c 'touch {begin}-$CONTAINER_INDEX; {wait.format(more)}'\n{HELLO}hello second\n"
    application = launch(file_of(place, engine, text, "containers=2\n", has_output=False))
    wait_for("both run", lambda: all(Path(f"{begin}-{n}").exists() for n in range(2)), END_S)
    engine.kill_master(application)
    more.touch()
    seen = ended(application, END_S)
    assert (seen["final_status"], seen["attempt"]) == ("SUCCEEDED", 2), seen["diagnostics"]
    output = printed("--container", "0", "--stdout", application)
    assert sorted(line.partition(":")[0] for line in output) == [f"second {n} in {n}" for n in range(2)]


@pytest.mark.proves("mpi-requests")
@on_yarn_when_full
def test_a_request_without_the_heads_token_starts_no_program(engine: Engine, place: Path) -> None:
    proof = place / "proof"
    application = launch(file_of(place, engine, "mpirun sleep 600", "containers=2\n", has_output=False))
    wait_for("it runs", lambda: _found(application, b"sleep"), END_S)
    url, secret = engine.control(application)
    containers = wait_for("its view has both", lambda: len(found := status(application)["containers"]) == 2 and found)
    head, member = (container["container_id"] for container in containers)
    forged = to_json(
        Report(
            container_id=ContainerId.from_text(head),
            number=1 << 40,
            index=0,
            phase=Phase.RUNNING,
            launches=(MpiLaunch(number=99, index=1, command=f"touch {proof}"),),
        )
    )
    tokens = "", "0" * 64, derive_token(new_secret(), head), derive_token(secret, member), derive_token(secret, TOOLS)
    for token in tokens:
        with ControlConnection(url, token) as foreign, pytest.raises(Denied):
            foreign.call("POST", f"/v1/tasks/{head}/report", forged, timeout_s=120)
    with ControlConnection(url, derive_token(secret, member)) as own:  # a container that is not the head
        as_member = {**forged, "container_id": member, "index": 1}
        own.call("POST", f"/v1/tasks/{member}/report", as_member, timeout_s=120)
        orders = own.call("POST", f"/v1/tasks/{member}/report", {**as_member, "number": (1 << 40) + 1}, timeout_s=120)
    assert [item["number"] for item in orders["launches"]] == [1]
    assert run("dlapp-kill", application).code == 0
    assert not proof.exists()


@on_yarn_when_full
def test_a_kill_ends_all_processes(engine: Engine, place: Path) -> None:
    application = launch(file_of(place, engine, "mpirun sleep 600", "containers=2\n", has_output=False))
    wait_for("it runs", lambda: _found(application, b"sleep"), END_S)
    assert run("dlapp-kill", application).code == 0
    wait_for("the end of all processes", lambda: not engine.processes(application))


@pytest.mark.slow
def test_an_image_needs_only_a_shell_and_open_mpi(
    dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    monkeypatch.setenv("DLAPP_LOCAL_VCORES", "8")
    import_mpi_image(dockerd)
    (tmp_path / "w/sub").mkdir(parents=True)
    source = Path(__file__).with_name("ring.c")
    subprocess.run(["mpicc", "-O", "-o", tmp_path / "w/sub/ring", source], check=True)
    (tmp_path / "w/run.sh").write_text(
        "set -e; cd sub; mpirun ./ring; if [ $DLAPP_GENERATION = 0 ]; then mpirun false; fi\n"
    )
    (tmp_path / "f.properties").write_text(
        f"[application]\nappname=ring\nuser_dev_workspace_path=w\nuser_shell_script=run.sh\nframework=mpi\n"
        f"docker_image={MPI_IMAGE}\nkill_grace=2s\nenv.OMPI_MCA_mpi_yield_when_idle=1\n"
        "[resources]\ncontainers=3\nmemory=256m\ngcores=0\nretries=1\n"
    )
    done = waited(tmp_path / "f.properties")
    application = id_of(done)
    assert done.code == 0, "\n".join((done.err, done.out, *printed("--stderr", application)))
    assert sorted(printed("--container", "0", "--stdout", application)) == [f"{n} of 3 in {n}: 6" for n in range(3)]
