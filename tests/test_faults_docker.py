"""Whole applications in Docker with a GPU, killed: who, by which signal, in which phase; what is left of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid.machine import MachineLedger
from tests.applications import application_dir, ended, launch, processes, properties, run, status, wait_for
from tests.runtime.driver import command_line, pids
from tests.services import gpu_programs
from tests.services.dockerd import GPU_IMAGE, IMAGE, Dockerd, busybox_root, dockerd, own_daemon
from tests.services.nvml_stub import Card, seen_by_all
from tests.services.registry import Registry
from tests.services.unix_proxy import UnixProxy

__all__ = ["dockerd"]

pytestmark = pytest.mark.docker

FULL = os.environ.get("DLAPP_FAULTS") == "full"


class Box:
    """A machine with one card and a Docker whose socket is a proxy's."""

    def __init__(self, directory: Path, state_dir: Path, daemon: Dockerd, proxy: UnixProxy) -> None:
        self.directory, self.state_dir, self.daemon, self.proxy = directory, state_dir, daemon, proxy
        self.marker = f"1000.{int.from_bytes(os.urandom(6), 'big')}"
        self.locks = directory / "gpus"

    def launch(self, image: str = GPU_IMAGE, script: str = "", **application: object) -> str:
        """An application that sleeps, with old output that must stay."""
        target = self.directory / "result"
        target.mkdir(exist_ok=True)
        (target / "a").write_text("old\n")
        text = script or f"mkdir -p out; echo new > out/a; trap '' TERM; echo ready; sleep {self.marker}"
        file = properties(
            self.directory,
            text,
            name="killed",
            application={"docker_image": image, **application},
            resources={"gcores": 1, "memory": 64},
            to_hdfs={"hdfs": target, "output_path": "out", "overwrite": "true"},
        )
        return launch(file)

    def payloads(self) -> list[int]:
        return [pid for pid in pids() if self.marker in command_line(pid)]

    def kill(self, number: signal.Signals, *roles: str) -> None:
        """Send a signal to everything of these roles at once; ``payload`` is all that has the marker."""
        victims = [one.pid for one in processes(self.state_dir) if one.role in roles]
        victims += self.payloads() if "payload" in roles else []
        assert victims
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def nothing_is_left(self, application: str) -> dict[str, Any]:
        """Wait for the end and look at all that must be gone; the status."""
        end = ended(application)
        wait_for("no payload", lambda: not self.payloads(), 5)
        wait_for("no container", lambda: not self.daemon.containers(f"label=dlapp.app={application}"))
        wait_for("no process", lambda: not processes(application_dir(self.state_dir, application)))
        ledger = MachineLedger(str(self.locks), discover=tuple)
        wait_for("no lease", lambda: (ledger.collect(), not ledger.holders())[1])
        wanted = "new\n" if end["final_status"] == "SUCCEEDED" else "old\n"
        assert (self.directory / "result" / "a").read_text() == wanted
        return end


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("box")


@contextlib.contextmanager
def a_box(directory: Path, state_dir: Path, daemon: Dockerd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    socket = Path(f"/tmp/dlapp-proxy-{os.getpid()}-{int.from_bytes(os.urandom(4), 'big')}.sock")
    cards = directory / "cards"
    cards.mkdir()
    for name, value in seen_by_all(cards, [Card()]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", os.pathsep.join([str(gpu_programs.hooks(daemon.directory)), os.environ["PATH"]]))
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", f"unix://{socket}")
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_NETWORK", "none")
    monkeypatch.setenv("DLAPP_GPUID_LOCK_DIR", str(directory / "gpus"))
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
    return lambda: any(one["phase"] == phase for one in status(application)["containers"])


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
PHASES = ("making", "starting", "running")
ALL = [
    (who, number, phase)
    for phase in PHASES
    for who in WHO
    for number in (signal.SIGKILL, signal.SIGTERM)
    if not (who == "payload" and phase != "running") and not (who == "payload" and number == signal.SIGTERM)
]
FEW = [
    ("task", signal.SIGKILL, "starting"),
    ("am+task", signal.SIGKILL, "making"),
    ("all", signal.SIGKILL, "running"),
    ("am", signal.SIGTERM, "running"),
]


@pytest.mark.parametrize(("who", "number", "phase"), ALL if FULL else FEW)
def test_whoever_is_killed_nothing_is_left(box: Box, who: str, number: signal.Signals, phase: str) -> None:
    # dockerd gets the call, and its answer does not come back.
    box.proxy.hang_at = {"making": b"POST /containers/create", "starting": b"/start"}.get(phase, b"")
    application = box.launch()
    if phase == "running":
        wait_for("its payload", lambda: in_phase(application, "running")() and box.payloads())
    else:
        wait_for("the call", lambda: box.proxy.held, 30)
    box.proxy.hang_at = b""
    box.kill(number, *WHO[who])
    if (who, number) == ("task", signal.SIGTERM):
        # As a node does that takes a container away: it is tried again.
        before = container_of(application)
        wait_for("the next one", lambda: container_of(application) != before and box.payloads(), 60)
        assert run("dlapp-kill", application).code == 0
    elif who != "payload":
        # The promise is a second; the machine may be busy with other tests.
        wait_for("the payload's end", lambda: not box.payloads(), 10)
    end = box.nothing_is_left(application)
    assert end["final_status"] in ("FAILED", "KILLED"), end
    assert end["diagnostics"]


def test_killed_while_an_image_is_pulled_the_next_one_pulls_it(box: Box, dockerd: Dockerd) -> None:
    with Registry(busybox_root({"bin/x": os.urandom(1 << 20)}), slow_s=3.0) as registry:
        first = box.launch(image=registry.image)
        wait_for("the pull", in_phase(first, "pulling"))
        wait_for("the layer", lambda: registry.layers_sent)
        box.kill(signal.SIGKILL, "am", "task")
        box.nothing_is_left(first)
        second = launch(properties(box.directory, "exit 0", name="next", application={"docker_image": registry.image}))
        assert ended(second)["final_status"] == "SUCCEEDED"
        dockerd.docker("rmi", registry.image)


def test_a_payload_ends_with_everything_of_it_killed_and_dockerd_dead(
    directory: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_daemon() as daemon, a_box(directory, state_dir, daemon, monkeypatch) as box:
        application = box.launch()
        wait_for("its payload", lambda: in_phase(application, "running")() and box.payloads())
        daemon.kill()
        box.kill(signal.SIGKILL, "runner", "am", "task")
        wait_for("the payload's end", lambda: not box.payloads(), 10)
        assert ended(application)["final_status"] == "FAILED"
        # What is not known frees nothing: its container cannot be looked for.
        ledger = MachineLedger(str(box.locks), discover=tuple)
        ledger.collect()
        assert ledger.holders()
        daemon.stop()
        shutil.rmtree(daemon.directory / "exec")
        daemon.start()
        wait_for("no lease", lambda: (ledger.collect(), not ledger.holders())[1])
        wait_for("no container", lambda: not daemon.containers(f"label=dlapp.app={application}"))


def test_a_kill_ends_a_payload_that_ignores_sigterm_and_frees_its_card(box: Box) -> None:
    application = box.launch()
    wait_for("its payload", lambda: in_phase(application, "running")() and box.payloads())
    assert run("dlapp-kill", application).code == 0
    assert box.payloads() == []
    assert box.nothing_is_left(application)["final_status"] == "KILLED"


def test_a_flood_of_output_is_cut_at_the_limit_and_the_application_goes_on(
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
    box.nothing_is_left(application)


# ---- a Docker that does not answer ----


def test_a_docker_that_does_not_answer_holds_up_nobody(
    tmp_path: Path, state_dir: Path, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "silent"
    silent.symlink_to(dockerd.socket)
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", f"unix://{silent}")
    first = launch(properties(tmp_path, "sleep 300", name="inside", application={"docker_image": IMAGE}))
    wait_for("its payload", lambda: any(c["phase"] == "running" for c in status(first)["containers"]))
    silent.unlink()
    for one in [one for one in processes(state_dir) if one.role in ("am", "task")]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    assert ended(first)["final_status"] == "FAILED"
    assert ended(launch(properties(tmp_path, "true", name="next")))["final_status"] == "SUCCEEDED"
    (log,) = state_dir.glob("*/runner-*.log")
    wait_for("a line", lambda: "could not be asked for its containers" in log.read_text())
    assert "Traceback" not in log.read_text()
    for name in dockerd.containers(f"label=dlapp.app={first}"):
        dockerd.docker("rm", "-f", name)
