"""Whole applications in Docker with a GPU, killed: who, by which signal, in which phase; what is left of them."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dlapp.am.decisions.assessment import NODE_RETRIES
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from tests.applications import (
    application_dir,
    ended,
    kill_processes,
    launch,
    processes,
    processes_of,
    properties,
    run,
    status,
    wait_for,
)
from tests.runtime.driver import command_line, pids
from tests.services.containers import gpu_programs
from tests.services.containers.dockerd import GPU_IMAGE, IMAGE, Dockerd, busybox_root, own_daemon
from tests.services.containers.nvml_stub import StubDevice, seen_by_all
from tests.services.containers.registry import Registry
from tests.services.containers.unix_proxy import UnixProxy
from tests.services.file_gate import FileGate
from tests.services.hadoop import Hadoop
from tests.services.zookeeper import ZooKeeper, ledger_settings
from tests.tiers import FULL

pytestmark = pytest.mark.docker


class Box:
    """A machine with one GPU and a Docker whose socket is a proxy's."""

    def __init__(self, directory: Path, state_dir: Path, daemon: Dockerd, proxy: UnixProxy) -> None:
        self.directory, self.state_dir, self.daemon, self.proxy = directory, state_dir, daemon, proxy
        self.marker = f"1000.{int.from_bytes(os.urandom(6), 'big')}"
        self.locks = directory / "gpus"

    def launch(self, image: str = GPU_IMAGE, script: str = "", **sections: Any) -> str:
        """An application that sleeps, with old output that must stay."""
        target = self.directory / "result"
        target.mkdir(exist_ok=True)
        (target / "a").write_text("old\n")
        text = script or f"mkdir -p out; echo new > out/a; trap '' TERM; echo ready; sleep {self.marker}"
        file = properties(
            self.directory,
            text,
            name="killed",
            application={"docker_image": image},
            resources={"gcores": 1, "memory": 64},
            to_hdfs={"hdfs": target, "output_path": "out", "overwrite": "true"},
            **sections,
        )
        return launch(file)

    def payloads(self) -> list[int]:
        return [pid for pid in pids() if self.marker in command_line(pid)]

    def kill(self, number: signal.Signals, *roles: str) -> None:
        """Send a signal to everything of these roles at once; ``payload`` is all that has the marker."""
        victims = [process.pid for process in processes(self.state_dir) if process.role in roles]
        victims += self.payloads() if "payload" in roles else []
        assert victims
        if number is signal.SIGKILL:
            kill_processes(victims)
            return
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def beside_the_target(self) -> set[str]:
        """Return the kinds of things that lie there for a while, or for who wants them; without the old output."""
        names = [path.name for path in self.directory.glob("result.*")]
        return {name.rpartition(".")[2] for name in names if not name.startswith("result.replaced.")}

    def ledger(self) -> MachineLedger:
        """The ledger as the next who asks for a GPU sees it: where dockerd did not answer before, it is asked again."""
        return MachineLedger(str(self.locks), docker_host=self.proxy.host, discover=tuple)

    def has_no_container(self, application: str) -> bool:
        return not self.daemon.containers(f"label=dlapp.app={application}")

    def check_clean_end(self, application: str) -> dict[str, Any]:
        """Wait for the end and look at all that must be gone; the status."""
        end = ended(application)
        wait_for("no payload", lambda: not self.payloads())
        wait_for("no container", lambda: self.has_no_container(application))
        wait_for("no process", lambda: not processes(application_dir(self.state_dir, application)))
        ledger = self.ledger()
        wait_for("no lease", lambda: (ledger.reclaim(), not ledger.holders())[1])
        wait_for("nothing half beside the target", lambda: self.beside_the_target() <= {"partial"})
        wanted = "new\n" if end["final_status"] == "SUCCEEDED" else "old\n"
        assert (self.directory / "result" / "a").read_text() == wanted
        return end


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("box")


@contextlib.contextmanager
def a_box(directory: Path, state_dir: Path, daemon: Dockerd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    socket = Path(f"/tmp/dlapp-proxy-{os.getpid()}-{int.from_bytes(os.urandom(4), 'big')}.sock")
    devices = directory / "cards"
    devices.mkdir()
    for name, value in seen_by_all(devices, [StubDevice()]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", os.pathsep.join([str(gpu_programs.hooks(daemon.directory)), os.environ["PATH"]]))
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", f"unix://{socket}")
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_NETWORK", "none")
    monkeypatch.setenv("DLAPP_GPUID_LOCK_DIR", str(directory / "gpus"))
    monkeypatch.setenv("DLAPP_LOCAL_AM_ATTEMPTS", "1")  # what is killed is not restarted
    try:
        with UnixProxy(socket, daemon.socket) as proxy:
            yield Box(directory, state_dir, daemon, proxy)
    finally:
        socket.unlink()


@pytest.fixture
def box(directory: Path, state_dir: Path, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    with a_box(directory, state_dir, dockerd, monkeypatch) as one:
        yield one


def in_phase(application: str, phase: str) -> Callable[[], bool]:
    return lambda: any(container["phase"] == phase for container in status(application)["containers"])


def container_of(application: str) -> str:
    """The last container of its only index, once its payload runs; else the one that was taken away."""
    (one,) = status(application)["containers"]
    return str(one["container_id"])


# ---- the matrix ----

WHO = {
    "task": ("task",),
    "am": ("am",),
    "am+task": ("am", "task"),
    "all": ("runner", "am", "task", "payload"),
    "payload": ("payload",),
}
CALLS = {"making": b"POST /containers/create", "started": b"/start"}
"""Phases in which dockerd got a call, and its answer does not come back; the others are
`dlapp.values.messages.Phase`'s."""
PHASES = (
    *("starting", "unpacking", "fetching", "leasing", "making", "waiting", "started"),
    *("running", "storing", "releasing"),
)
ALL = [
    (who, number, phase)
    for phase in PHASES
    for who in WHO
    for number in (signal.SIGKILL, signal.SIGTERM)
    if not (who == "payload" and phase != "running") and not (who == "payload" and number == signal.SIGTERM)
]
FEW = [
    ("am+task", signal.SIGKILL, "making"),
    ("am", signal.SIGKILL, "waiting"),
    ("task", signal.SIGKILL, "started"),
    ("all", signal.SIGKILL, "running"),
    ("am", signal.SIGTERM, "running"),
    ("all", signal.SIGKILL, "storing"),
    ("task", signal.SIGTERM, "storing"),
    ("task", signal.SIGKILL, "releasing"),
]


@pytest.fixture
def gate() -> Iterator[FileGate]:
    with FileGate() as one:
        yield one


def is_task(pid: int) -> bool:
    return "/dlapp/__main__.py\0task\0" in command_line(pid)


def launched_and_held(box: Box, gate: FileGate, phase: str) -> tuple[str, Path]:
    """An application in a phase: its task waits at a file that it opens there, or for an answer; and its container."""
    source = box.directory / "source"
    source.mkdir()
    (source / "data").write_text("1")
    box.locks.mkdir()
    box.locks.chmod(0o1777)
    for place in (source, box.locks):
        gate.watch(place)

    def hold(*places: Path) -> None:
        gate.open(lambda pid, path: Path(path) in places and is_task(pid))

    box.proxy.hang_at = CALLS.get(phase, b"")
    match phase:
        case "starting" | "unpacking":
            hold(source)
        case "leasing":
            gate.open(lambda pid, path: path.startswith(str(box.locks)) and is_task(pid))
        case "fetching" | "waiting":
            hold(source / "data")
    wait = f"trap '' TERM; exec sh -c 'until [ -e finish ]; do sleep 0.02; done' {box.marker}"
    more: dict[str, Any] = {
        "to_hdfs more": {"hdfs": box.directory / "more", "output_path": "more", "overwrite": "true"}
    }
    application = box.launch(
        script=f"mkdir -p out more __pycache__; echo new > out/a; echo new > more/b; {wait}",
        from_hdfs={"hdfs": source, "input_path": "in"},
        **more,
    )
    containers = application_dir(box.state_dir, application) / "containers"
    home = containers / wait_for("the container", lambda: containers.is_dir() and os.listdir(containers))[0]
    if phase in CALLS:
        wait_for("the call", lambda: box.proxy.held)
        box.proxy.hang_at = b""
        # The call may be quicker than the view, which is written a few times a second at most.
        wait_for("the status names it", lambda: status(application)["containers"])
        return application, home
    if phase in ("running", "storing", "releasing"):
        wait_for("its payload", lambda: in_phase(application, "running")() and box.payloads())
        if phase == "running":
            return application, home
        # The search for files that are not stored does not open caches; their removal does.
        place = home / "workspace" / ("out/a" if phase == "storing" else "__pycache__")
        gate.watch(place)
        hold(place)
        (home / "workspace" / "finish").touch()
    wait_for("the task at the gate", lambda: gate.held)
    wait_for("the status names it", lambda: status(application)["containers"])
    if phase == "unpacking":
        (archives,) = box.state_dir.glob(f"*/cache/{os.getuid()}")
        gate.watch(archives)
        gate.open(lambda pid, path: path.startswith(str(archives)) and is_task(pid))
        wait_for("the task at the archive", lambda: gate.held)
    if phase == "waiting":
        # The ApplicationMaster says at once that the payload may start; so it must not hear the question.
        box.kill(signal.SIGSTOP, "am")
        gate.open()
        wait_for("it is waiting", lambda: " waiting\n" in (home / "dlapp.log").read_text())
    else:
        wait_for(f"it is {phase}", in_phase(application, phase))
    return application, home


@pytest.mark.parametrize(("who", "number", "phase"), ALL if FULL else FEW)
def test_a_kill_of_any_process_leaves_no_container_and_no_lease(
    box: Box, gate: FileGate, who: str, number: signal.Signals, phase: str
) -> None:
    application, home = launched_and_held(box, gate, phase)
    box.kill(number, *WHO[who])
    gate.open()
    with contextlib.suppress(AssertionError):  # it is gone
        box.kill(signal.SIGCONT, "am")
    as_wanted = {"FAILED", "KILLED"}
    if (who, number, phase) == ("task", signal.SIGTERM, "releasing"):
        as_wanted = {"SUCCEEDED"}  # all that was to be done is done
    elif (who, number) == ("task", signal.SIGTERM):
        # As a node does that takes a container away: it is tried again.
        wait_for("the next one", lambda: container_of(application) != home.name and box.payloads())
        assert run("dlapp-kill", application).code == 0
    elif who != "payload":
        # The promise is a second; the machine may be busy with other tests.
        wait_for("the payload's end", lambda: not box.payloads())
    end = box.check_clean_end(application)
    assert end["final_status"] in as_wanted, end
    assert bool(end["diagnostics"]) is (end["final_status"] != "SUCCEEDED")


@pytest.mark.slow
def test_killed_while_an_image_is_pulled_the_next_one_pulls_it(box: Box, dockerd: Dockerd) -> None:
    with Registry(busybox_root({"bin/x": os.urandom(8 << 20)}), slow_s=60.0) as registry:
        first = box.launch(image=registry.image)
        wait_for("the pull", in_phase(first, "pulling"))
        wait_for("the layer", lambda: registry.layers_sent)
        wait_for("how far it is", lambda: 0 < (status(first)["containers"][0]["progress"] or 0) < 1)
        box.kill(signal.SIGKILL, "am", "task")
        registry.slow_s = 0.0
        box.check_clean_end(first)
        second = launch(properties(box.directory, "exit 0", name="next", application={"docker_image": registry.image}))
        assert ended(second)["final_status"] == "SUCCEEDED"
        dockerd.docker("rmi", registry.image)


@pytest.mark.slow
def test_a_payload_ends_with_everything_of_it_killed_and_dockerd_dead(
    directory: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_daemon() as daemon, a_box(directory, state_dir, daemon, monkeypatch) as box:
        application = box.launch()
        wait_for("its payload", lambda: in_phase(application, "running")() and box.payloads())
        daemon.kill()
        box.kill(signal.SIGKILL, "runner", "am", "task")
        wait_for("the payload's end", lambda: not box.payloads())
        assert ended(application)["final_status"] == "FAILED"
        # What is not known frees nothing: its container cannot be searched for.
        ledger = box.ledger()
        ledger.reclaim()
        assert ledger.holders()
        daemon.stop()
        shutil.rmtree(daemon.directory / "exec")
        daemon.start()
        wait_for("no lease", lambda: (ledger.reclaim(), not ledger.holders())[1])
        wait_for("no container", lambda: not daemon.containers(f"label=dlapp.app={application}"))


@pytest.mark.slow
def test_a_container_with_a_gpu_outlives_its_applicationmaster_and_runs_once(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_LOCAL_AM_ATTEMPTS", "2")
    script = "mkdir -p out; echo start >>out/starts; echo new >out/a; until [ -e go ]; do sleep 0.1; done"
    application = box.launch(script=script)
    wait_for("its payload", in_phase(application, "running"))
    holders = box.ledger().holders()
    home = application_dir(box.state_dir, application) / "containers" / container_of(application)
    wait_for("its start", (home / "workspace" / "out" / "starts").exists)
    box.kill(signal.SIGKILL, "am")
    wait_for("the next one", lambda: (now := status(application))["attempt"] == 2 and now["phase"] == "running 1 of 1")
    assert {uuid: one.container for uuid, one in box.ledger().holders().items()} == {
        uuid: one.container for uuid, one in holders.items()
    }
    (home / "workspace" / "go").touch()
    assert box.check_clean_end(application)["final_status"] == "SUCCEEDED"
    assert (box.directory / "result" / "starts").read_text() == "start\n"


def test_a_kill_ends_a_payload_that_ignores_sigterm_and_frees_its_device(box: Box) -> None:
    application = box.launch()
    wait_for("its payload", lambda: in_phase(application, "running")() and box.payloads())
    assert run("dlapp-kill", application).code == 0
    assert box.payloads() == []
    assert box.check_clean_end(application)["final_status"] == "KILLED"


@pytest.mark.slow
def test_a_flood_of_output_is_cut_at_the_limit_and_the_application_continues(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_LOG_LIMIT", "1m")
    flood = "mkdir -p out; echo new > out/a; dd if=/dev/zero bs=1048576 count=1024 2>/dev/null; printf 'the end' >&2"
    application = box.launch(script=flood)
    end = ended(application)
    assert end["final_status"] == "SUCCEEDED", end
    (container,) = end["containers"]
    assert "stdout cut to 1048576 bytes" in container["message"]
    home = application_dir(box.state_dir, application) / "containers" / container["container_id"]
    assert (home / "stdout").stat().st_size == 1 << 20
    assert (home / "stderr").read_text() == "the end"
    box.check_clean_end(application)


# ---- a Docker that does not answer ----


@pytest.mark.slow
def test_an_unresponsive_docker_does_not_block_other_applications(
    tmp_path: Path, state_dir: Path, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "silent"
    silent.symlink_to(dockerd.socket)
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", f"unix://{silent}")
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_NETWORK", "none")
    first = launch(properties(tmp_path, "sleep 300", name="inside", application={"docker_image": IMAGE}))
    wait_for("its payload", lambda: any(c["phase"] == "running" for c in status(first)["containers"]))
    silent.unlink()
    for process in [one for one in processes(state_dir) if one.role in ("am", "task")]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    assert ended(first)["final_status"] == "FAILED"
    assert ended(launch(properties(tmp_path, "true", name="next")))["final_status"] == "SUCCEEDED"
    (log,) = state_dir.glob("*/runner-*.log")
    wait_for("a line", lambda: "did not list its containers" in log.read_text())
    assert "Traceback" not in log.read_text()
    for name in dockerd.containers(f"label=dlapp.app={first}"):
        dockerd.docker("rm", "-f", name)


# ---- a Docker or a registry that is away for a while ----


def finish(box_dir: Path, application: str) -> None:
    """Let the payload of the application's only container end, once it runs."""
    (one,) = wait_for("its container", lambda: in_phase(application, "running")() and status(application)["containers"])
    home = application_dir(box_dir, application) / "containers" / one["container_id"]
    (home / "workspace" / "finish").touch()


GONE = (": no such file or directory", ": connection refused")
"""How the reason ends for which a dockerd does not answer that was stopped."""
WAITS = "echo ready; until [ -e finish ]; do sleep 0.02; done"


@pytest.fixture
def own(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dockerd]:
    """A daemon that may be stopped, which applications use directly."""
    with own_daemon() as daemon:
        monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", daemon.host)
        monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_NETWORK", "none")
        yield daemon


@pytest.mark.slow
def test_a_stopped_docker_ends_no_local_application_and_the_status_names_the_wait(
    tmp_path: Path, state_dir: Path, own: Dockerd
) -> None:
    application = launch(properties(tmp_path, WAITS, application={"docker_image": IMAGE}))
    wait_for("its payload", in_phase(application, "running"))
    own.terminate()
    detail = wait_for(
        "the next try waits",
        lambda: next((c["detail"] for c in status(application)["containers"] if c["detail"].endswith(GONE)), False),
    )
    assert detail.startswith(f"waits for Docker at {own.host} since ")
    assert detail in run("dlapp-status", application).out
    own.start()
    finish(state_dir, application)
    end = ended(application)
    assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
    (container,) = end["containers"]
    assert container["attempt"] == 2
    assert "Docker was stopped or restarted under the payload" in container["earlier"][0]["message"]
    assert container["earlier"][0]["diagnosis"]["rule"] == "docker_stopped"


@pytest.mark.slow
def test_more_restarts_of_docker_than_a_node_has_retries_end_no_application(
    tmp_path: Path, state_dir: Path, own: Dockerd
) -> None:
    application = launch(properties(tmp_path, WAITS, application={"docker_image": IMAGE}))
    for attempt in range(1, NODE_RETRIES + 3):

        def runs(attempt: int = attempt) -> bool:
            return any((c["attempt"], c["phase"]) == (attempt, "running") for c in status(application)["containers"])

        wait_for("its payload", runs)
        if attempt < NODE_RETRIES + 2:
            own.restart()
    finish(state_dir, application)
    assert ended(application)["final_status"] == "SUCCEEDED"


@pytest.mark.slow
@pytest.mark.parametrize("has_output", [True, False], ids=["output so far", "no output so far"])
def test_output_written_before_docker_stopped_is_kept(
    tmp_path: Path, state_dir: Path, own: Dockerd, has_output: bool
) -> None:
    write = "mkdir output; echo new >output/a" if has_output else ":"
    file = properties(
        tmp_path,
        f"{write}; {WAITS}",
        application={"docker_image": IMAGE, "service_patience": "2s"},
        to_hdfs={"output_path": "output", "hdfs": "result"},
    )
    application = launch(file)
    wait_for("its payload", lambda: run("dlapp-logs", application).out == "[0] ready\n")
    own.terminate()
    end = ended(application)
    assert end["final_status"] == "FAILED"
    assert "Docker at " in end["diagnostics"]
    assert not (tmp_path / "result").exists()
    partial = status(application)["outputs"][0]["partial"]
    assert (partial is not None) is has_output
    assert not has_output or Path(partial.removeprefix("file://"), "a").read_text() == "new\n"


def test_an_application_that_waits_for_docker_can_be_killed(tmp_path: Path, own: Dockerd) -> None:
    application = launch(properties(tmp_path, WAITS, application={"docker_image": IMAGE}))
    wait_for("its payload", in_phase(application, "running"))
    own.terminate()
    wait_for("it waits", lambda: any("waits for" in c["detail"] for c in status(application)["containers"]))
    assert run("dlapp-kill", application).code == 0
    assert ended(application)["final_status"] == "KILLED"


def test_on_one_machine_a_rate_limiting_registry_is_waited_for(tmp_path: Path, state_dir: Path, own: Dockerd) -> None:
    with Registry(busybox_root()) as registry:
        registry.is_busy = True
        application = launch(properties(tmp_path, "exit 0", application={"docker_image": registry.image}))
        detail = wait_for(
            "it waits",
            lambda: next(
                (c["detail"] for c in status(application)["containers"] if "the registry" in c["detail"]), False
            ),
        )
        assert detail.startswith(f"waits for the registry of image {registry.image} since ")
        registry.is_busy = False
        end = ended(application)
        assert (end["final_status"], end["containers"][0]["attempt"]) == ("SUCCEEDED", 1)


# ---- on a cluster ----

if FULL:

    @pytest.mark.root("to show its tasks another /etc")
    @pytest.mark.parametrize("who", ["task", "am+task", "all"])
    def test_a_kill_on_yarn_ends_the_payload_and_the_next_application_cleans_up(
        who: str, box: Box, hadoop: Hadoop, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        python, credentials = box.directory / "python3", box.directory / "credentials"
        exports = "".join(f"export {name}='{os.environ[name]}'\n" for name in ("PATH", "LD_LIBRARY_PATH"))
        # A task that is root starts containers only where the node's operator says so, in an /etc of the test's own.
        etc = box.directory / "etc"
        subprocess.run(["cp", "-a", "/etc", etc], check=True)
        (etc / "dlapp").mkdir(exist_ok=True)
        (etc / "dlapp" / "node.yaml").write_text("docker: {root: true}\n")
        in_mount_namespace = (
            f'unshare --mount --propagation private sh -c \'mount --bind "$0" /etc && exec "$@"\' {etc}'
        )
        python.write_text(f'#!/bin/sh\n{exports}exec {in_mount_namespace} {sys.executable} "$@"\n')
        python.chmod(0o755)
        credentials.write_text("dlapp:secret\n")
        credentials.chmod(0o600)
        for name, text in {
            "DLAPP_CLUSTER": "yarn",
            "DLAPP_YARN_CONF_DIR": str(hadoop.configuration),
            "DLAPP_YARN_PYTHON": str(python),
            "DLAPP_YARN_AM_ATTEMPTS": "1",
            "DLAPP_GPUID_ZOOKEEPER_ENSEMBLE": zookeeper.ensemble,
            "DLAPP_GPUID_ZOOKEEPER_ROOT": f"/{box.directory.name}",
            "DLAPP_GPUID_ZOOKEEPER_CREDENTIALS": str(credentials),
            "HADOOP_USER_NAME": getpass.getuser(),
        }.items():
            monkeypatch.setenv(name, text)

        def file(script: str) -> Path:
            resources = {"gcores": 1, "memory": 64}
            return properties(box.directory, script, application={"docker_image": GPU_IMAGE}, resources=resources)

        first = launch(file(f"trap '' TERM; sleep {box.marker}"))
        wait_for("its payload", lambda: in_phase(first, "running")() and box.payloads())
        victims = [
            process.pid
            for process in processes_of(first)
            if process.role in (*WHO[who], *(["payload"] * (who == "all")))
        ]
        assert victims
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for("no payload", lambda: not box.payloads())
        assert ended(first)["final_status"] == "FAILED"
        # There is one GPU: the next one waits until this is known to be free.
        second = launch(file('test "$(echo "$CUDA_VISIBLE_DEVICES" | tr , "\\n" | wc -l)" = 1'))
        end = ended(second)
        assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
        wait_for("no process", lambda: not processes_of(first) and not processes_of(second))
        for item in (first, second):
            wait_for("no container", partial(box.has_no_container, item))
        settings = ledger_settings(
            zookeeper.ensemble, f"/{box.directory.name}", "dlapp:secret", lock_dir=str(box.locks)
        )
        with ZooKeeperLedger(settings, discover=tuple) as ledger:
            wait_for("no lease", lambda: not ledger.record().leases)
