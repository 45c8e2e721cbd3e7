"""A dockerd that is restarted, hangs, is slow or has no room; an image that goes; a payload that floods its log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.node_policy import node_policy
from dlapp.runtime.docker.payload import DockerRun
from dlapp.runtime.payload import Payload, PayloadError, PayloadExit
from dlapp.task.logs import TaskLog
from dlapp.values.launch_spec import DockerSettings
from dlapp.values.messages import Fault
from dlapp.values.spec import Resources
from tests.runtime.driver import Driven, has_holder, wait_until
from tests.services import polling
from tests.services.containers.dockerd import IMAGE, Dockerd, busybox_root, own_daemon
from tests.services.containers.registry import Registry
from tests.services.containers.unix_proxy import UnixProxy
from tests.tiers import FULL

pytestmark = pytest.mark.docker


class Here:
    """A payload in Docker that this very process looks after."""

    def __init__(self, directory: Path, host: str, image: str) -> None:
        self.directory, self.notes = directory, list[str]()
        self.log = TaskLog(str(directory / "dlapp.log"))  # its lock says that we live
        (directory / "workspace").mkdir()
        payload = Payload(
            application_id="application_1700000000000_0001",
            container_id=f"container_{int.from_bytes(os.urandom(6), 'big')}",
            directory=str(directory),
            script="run.sh",
            args=(),
            env={},
            resources=Resources(memory_mib=64),
            image=image,
        )
        settings = DockerSettings(host, "none", lock_dir=str(directory))
        self.run = DockerRun(payload, settings, node_policy("/none").docker, self.notes.append)

    def script(self, text: str) -> None:
        (self.directory / "workspace" / "run.sh").write_text(text)

    def out(self) -> str:
        return (self.directory / "stdout").read_text()

    def end(self) -> PayloadExit:
        found: list[PayloadExit] = []

        def ended() -> bool:
            found.extend(item for item in [self.run.ended()] if item is not None)
            return bool(found)

        wait_until(ended, "it has ended")
        return found[0]


Make = Callable[..., Here]


@pytest.fixture
def make_container(place: Path) -> Generator[Make, None, None]:
    made: list[Here] = []

    def make(host: str, image: str = IMAGE) -> Here:
        directory = place / f"container{len(made)}"
        directory.mkdir()
        made.append(Here(directory, host, image))
        return made[-1]

    yield make
    for item in made:
        item.run.close()
        item.log.close()


@pytest.fixture
def proxy(place: Path, dockerd: Dockerd) -> Generator[UnixProxy, None, None]:
    with UnixProxy(place / "docker.sock", dockerd.socket) as one:
        yield one


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dockerd on a busy machine is no dockerd that hangs."""
    monkeypatch.setattr("dlapp.runtime.docker.payload._LOOK_TIMEOUT_S", 120.0)
    monkeypatch.setattr("dlapp.runtime.docker.exit_status.SETTLED_S", 120.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of dockerd before the start may take some seconds, not a minute."""
    monkeypatch.setattr("dlapp.runtime.docker.payload._CALL_TIMEOUT_S", 4.0)


# ---- restarted ----


def running(place: Path, daemon: Dockerd) -> Driven:
    docker = Driven(place, as_user=False)
    docker.run(
        "echo ready; while [ ! -e finish ]; do sleep 0.02; done; exit 6",
        image=IMAGE,
        docker_host=daemon.host,
        docker_lock_dir=str(place),
    )
    docker.hear("started")
    docker.wait_for_out(b"ready")
    return docker


@pytest.mark.slow
def test_a_payload_that_a_restart_of_dockerd_ended_is_the_nodes_fault(place: Path) -> None:
    with own_daemon() as daemon:
        docker = running(place, daemon)
        try:
            daemon.restart()
            end = docker.end()
            assert (end["code"], end["fault"]) == (None, "node")
            assert end["problem"].startswith("Docker was stopped or restarted under the payload, and ended it (signal ")
        finally:
            docker.close()


def shim_of(daemon: Dockerd) -> int:
    """The process of containerd that holds the daemon's only container."""
    (name,) = daemon.containers()
    pid = int(daemon.docker("inspect", "--format", "{{.State.Pid}}", name).stdout)
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextlib.contextmanager
def stopped_containerd(daemon: Dockerd) -> Iterator[None]:
    """The daemon's containerd does nothing meanwhile."""
    command = ["pgrep", "-x", "-P", str(daemon.pid), "containerd"]
    containerd = int(subprocess.run(command, capture_output=True, check=True).stdout)
    os.kill(containerd, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(containerd, signal.SIGCONT)


def pidfd_of(driven: Driven, pid: int) -> Path | None:
    """Return the descriptor by which a driver watches a process; None: it does not."""
    assert driven.process is not None
    for info in Path(f"/proc/{driven.process.pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if f"Pid:\t{pid}\n" in info.read_text():
                return info.parents[1] / "fd" / info.name
    return None


def is_pidfd(descriptor: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return str(descriptor.readlink()) == "anon_inode:[pidfd]"
    return False


def test_a_payload_that_ends_with_the_shim_of_its_container_ends_by_dockers_fault(place: Path) -> None:
    with own_daemon() as daemon:
        docker = running(place, daemon)
        try:
            # containerd ends a payload without a shim at once. On a busy machine that can be before the task looks, and
            # then it cannot tell which of both ended first.
            shim = shim_of(daemon)
            with stopped_containerd(daemon):
                watch = polling.wait_until(lambda: pidfd_of(docker, shim), what="the task watches the shim")
                os.kill(shim, signal.SIGKILL)
                wait_until(lambda: not is_pidfd(watch), what="the task has seen its end")
            end = docker.end()
            assert (end["code"], end["fault"], end["service"]) == (None, "node", "Docker")
            assert end["problem"] == "Docker's shim of the container was killed"
        finally:
            docker.close()


def test_a_payload_that_kills_the_wrapper_ended_by_its_own_fault(make_container: Make, dockerd: Dockerd) -> None:
    one = make_container(dockerd.host)
    one.script("kill -9 -1")
    one.run.prepare()
    one.run.start()
    assert one.end() == PayloadExit(None, signal.SIGKILL)


@pytest.mark.slow
def test_with_live_restore_a_payload_survives_a_dockerd_restart(place: Path) -> None:
    with own_daemon(config={"live-restore": True}) as daemon:
        docker = running(place, daemon)
        try:
            daemon.restart()
            (place / "workspace" / "finish").touch()
            assert docker.end()["code"] == 6
            assert daemon.containers() == []
        finally:
            docker.close()


# ---- hung, slow ----


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("call", [b"POST /containers/create", *([b"GET /images", b"GET /containers/"] if FULL else [])])
def test_a_dockerd_that_hangs_before_the_start_is_the_nodes_fault(
    make_container: Make, proxy: UnixProxy, dockerd: Dockerd, call: bytes
) -> None:
    one = make_container(proxy.host)
    one.script("echo it ran")
    proxy.hang_at = call
    with pytest.raises(PayloadError, match="does not answer: no answer in 4 s; does dockerd run") as silent:
        one.run.prepare()
    assert silent.value.fault is Fault.NODE
    if b"create" in call:
        # The answer was held back, not the request: dockerd may still be at it, and what is not there is not removed.
        wait_until(lambda: bool(dockerd.containers()), "it is made all the same")
    proxy.hang_at = b""
    one.run._docker.timeout_s = 60.0
    one.run.close()
    assert dockerd.containers() == []
    assert not (one.directory / "stdout").exists() or one.out() == ""


@pytest.mark.slow
def test_an_unanswered_start_leaves_no_container_running(
    make_container: Make, proxy: UnixProxy, dockerd: Dockerd
) -> None:
    one = make_container(proxy.host)
    one.script("echo it ran; sleep 100")
    one.run.prepare()
    proxy.hang_at = b"/start"
    one.run._docker.timeout_s = 4.0
    with pytest.raises(PayloadError, match="does not answer") as silent:
        one.run.start()
    assert silent.value.fault is Fault.NODE
    one.run._docker.timeout_s = 60.0
    one.run.close()
    wait_until(lambda: not has_holder(str(one.directory / "life")), "nobody holds the lifeline")
    assert dockerd.containers() == []


@pytest.mark.slow
def test_while_dockerd_hangs_ends_are_reported_and_kills_work(
    make_container: Make, proxy: UnixProxy, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlapp.runtime.docker.payload._LOOK_TIMEOUT_S", 0.5)
    first, second = make_container(proxy.host), make_container(proxy.host)
    first.script("echo ready; while [ ! -e finish ]; do sleep 0.02; done; exit 6")
    second.script("echo ready; sleep 100")
    for one in (first, second):
        one.run.prepare()
        one.run.start()
        wait_until(lambda item=one: item.out() == "ready\n", "it runs")  # type: ignore[misc]
    proxy.hangs.set()
    (first.directory / "workspace" / "finish").touch()
    assert first.end().exit_code == 6
    second.run.kill()
    assert second.end().fault is Fault.NODE
    for one in (first, second):
        one.run.close()
        assert any("is left to be removed" in note for note in one.notes)
    proxy.hangs.clear()
    # The answers were held back, not the requests: dockerd is removing them, and refuses a second removal meanwhile.
    wait_until(
        lambda: not [dockerd.docker("rm", "-f", name, check=False) for name in dockerd.containers()], "none is left"
    )


@pytest.mark.slow
def test_a_slow_dockerd_is_waited_for(make_container: Make, proxy: UnixProxy, dockerd: Dockerd) -> None:
    proxy.delay_s = 0.3
    one = make_container(proxy.host)
    one.script("echo ran; exit 4")
    one.run.prepare()
    one.run.start()
    assert one.end().exit_code == 4
    one.run.close()
    assert dockerd.containers() == []


@pytest.mark.slow
def test_a_paused_dockerd_does_not_delay_a_running_payload(place: Path) -> None:
    with own_daemon() as daemon:
        docker = running(place, daemon)
        try:
            os.kill(daemon.pid, signal.SIGSTOP)
            threading.Timer(1.0, os.kill, (daemon.pid, signal.SIGCONT)).start()
            (place / "workspace" / "finish").touch()
            assert docker.end()["code"] == 6
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
            docker.close()


# ---- no room, no image ----


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(1 << 20))


@pytest.mark.slow
def test_a_full_disk_of_dockers_is_the_nodes_fault_in_its_words(make_container: Make) -> None:
    with own_daemon(data_mib=64) as daemon:
        one = make_container(daemon.host)
        one.script("echo it ran")
        fill(daemon.directory / "data" / "ballast")
        with pytest.raises(PayloadError, match="no space left on device") as full:
            one.run.prepare()
        assert full.value.fault is Fault.NODE
        one.run.close()
        (daemon.directory / "data" / "ballast").unlink()
        one.run.prepare()
        one.run.start()
        assert one.end().exit_code == 0
        with Registry(busybox_root({"ballast": os.urandom(80 << 20)})) as registry:
            larger = make_container(daemon.host, registry.image)
            larger.script("echo it ran")
            with pytest.raises(PayloadError, match="cannot be pulled: Docker's disk is full") as full:
                larger.run.prepare()
            assert full.value.fault is Fault.NODE
        assert not (larger.directory / "stdout").exists() or larger.out() == ""


@pytest.mark.slow
def test_a_removed_image_does_not_affect_a_running_payload(place: Path) -> None:
    with own_daemon() as daemon:
        docker = running(place, daemon)
        try:
            daemon.docker("rmi", "-f", IMAGE)
            (place / "workspace" / "finish").touch()
            assert docker.end()["code"] == 6
        finally:
            docker.close()


def test_an_image_that_is_removed_before_the_container_is_made_is_pulled_again(
    make_container: Make, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Registry(busybox_root()) as registry:
        one = make_container(dockerd.host, registry.image)
        one.script("exit 3")
        create, calls = one.run._docker.create, []

        def removed_in_this_moment(name: str, config: Any) -> None:
            calls.append(name)
            if len(calls) == 1:
                dockerd.docker("rmi", "-f", registry.image)
            create(name, config)

        monkeypatch.setattr(one.run._docker, "create", removed_in_this_moment)
        one.run.prepare()
        one.run.start()
        assert one.end().exit_code == 3
        assert len(calls) == 2
        assert one.notes.count(f"image {registry.image}: pulling") == 2
        one.run.close()
        dockerd.docker("rmi", "-f", registry.image)


# ---- what a payload does ----


def test_daemonized_processes_end_with_the_payload(make_container: Make, dockerd: Dockerd) -> None:
    one = make_container(dockerd.host)
    marker = f"1000.{int.from_bytes(os.urandom(6), 'big')}"
    one.script(f"(setsid sh -c 'trap \"\" TERM HUP; sleep {marker}' </dev/null >/dev/null 2>&1 &)\nexit 0\n")
    one.run.prepare()
    one.run.start()
    assert one.end().exit_code == 0
    one.run.close()
    assert subprocess.run(["pgrep", "-f", marker], capture_output=True).stdout == b""


def test_an_unterminated_last_line_is_kept_always(make_container: Make, dockerd: Dockerd) -> None:
    for last, code in (("", 0), ("; exit 3", 3), ("; kill -9 0", None), ("; sleep 1000", None)):
        one = make_container(dockerd.host)
        one.script(f"seq 1 5000; printf 'the last'{last}")
        one.run.prepare()
        one.run.start()
        if "sleep" in last:
            wait_until(lambda item=one: item.out().endswith("the last"), "it has printed")  # type: ignore[misc]
            one.run.kill()
        assert one.end().exit_code == code
        one.run.close()
        assert one.out().endswith("5000\nthe last")
