"""Each way of giving a container its GPUs, on real dockerds: what arrives inside, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.net.dockerd import Dockerd as Client
from dlapp.runtime.gpu.facts import facts_of
from tests.runtime.driver import Driven, wait_until
from tests.services.containers import gpu_programs, newer_debian
from tests.services.containers.dockerd import GPU_IMAGE, IMAGE, Dockerd, own_daemon

pytestmark = pytest.mark.docker

LOOK = 'ls /dev/nvidia* 2>/dev/null; echo "[$NVIDIA_VISIBLE_DEVICES]"; nvidia-smi -L | wc -l'


def uuid(place: int) -> str:
    return f"GPU-{place:08d}-aaaa-bbbb-cccc-000000000000"


def devices(*places: int) -> list[tuple[str, int, int]]:
    return [(uuid(place), place, place) for place in places]


class Runner:
    """Runs scripts in containers of one daemon, each with a home of its own."""

    def __init__(self, directory: Path, daemon: Dockerd) -> None:
        self.daemon, self._directory, self._made = daemon, directory, list[Driven]()
        self.programs = [gpu_programs.nvidia_docker(daemon.directory)]
        """Directories before all others on the task's PATH."""

    def start(self, script: str, *, mode: str, places: tuple[int, ...] = (), **options: Any) -> Driven:
        home = self._directory / str(len(self._made))
        home.mkdir()
        path = os.pathsep.join([*map(str, self.programs), os.environ["PATH"]])
        driven = Driven(home, as_user=False, env={"PATH": path})
        driven.within = self.within
        self._made.append(driven)
        fields = {"image": GPU_IMAGE, "gpus": devices(*places), "docker_gpu_mode": mode} | options
        fields["resources"] = {"memory_mib": 64, "gcores": len(fields["gpus"])}
        return driven.run(script, docker_host=self.daemon.host, docker_lock_dir=str(self._directory), **fields)

    def seen(self, script: str, **options: Any) -> list[str]:
        """Return what a script printed that ended well."""
        driven = self.start(script, **options)
        assert driven.end()["code"] == 0
        return driven.out().decode().split()

    def refused(self, **options: Any) -> tuple[str, str]:
        """Return whose fault it is that a payload was not run, and the words; nothing of it is left."""
        driven = self.start("echo it ran", **options)
        message = driven.hear("refused")
        assert driven.process is not None
        driven.process.wait(timeout=120)
        assert driven.out() == b""
        assert self.daemon.containers() == []
        return message["fault"], message["problem"]

    def doctor(self, mode: str) -> tuple[str, str]:
        """The verdict and the words of dlapp-doctor's line on the GPUs of containers."""
        own = {
            "PATH": os.pathsep.join([*map(str, self.programs), os.environ["PATH"]]),
            "DLAPP_LOCAL_STATE_DIR": str(self._directory),
            "DLAPP_RUNTIME_DOCKER_HOST": self.daemon.host,
            "DLAPP_RUNTIME_DOCKER_GPU_MODE": mode,
        }
        command = [*self.within, sys.executable, "-m", "dlapp.tools", "doctor", "--json"]
        done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, timeout=240)
        found = {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}["docker.gpus"]
        return found["verdict"], found["found"]

    @property
    def within(self) -> list[str]:
        """Return what stands before a command that is to see the machine as the daemon does."""
        return ["nsenter", f"--mount=/proc/{self.daemon.pid}/ns/mnt"] if self.daemon.within else []

    def close(self) -> None:
        for driven in self._made:
            driven.close()


@pytest.fixture
def old(place: Path, dockerd: Dockerd) -> Generator[Runner, None, None]:
    """The installed Docker with NVIDIA's hook and runtime."""
    runner = Runner(place, dockerd)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def newer() -> Iterator[Dockerd]:
    """A Docker with CDI, and two GPUs in its specification; a third name there leads to another's GPU."""
    try:
        programs = newer_debian.docker()
    except newer_debian.NotToBeHad as reason:
        pytest.skip(str(reason))
    with own_daemon(programs, config={"features": {"cdi": True}}) as daemon:
        directory = daemon.directory / "cdi"
        directory.mkdir()
        daemon.config["cdi-spec-dirs"] = [str(directory)]
        devices = [
            {"name": name, "containerEdits": {"deviceNodes": [node(place)], "env": [f"CARD{place}=here"]}}
            for name, place in ((uuid(0), 0), (uuid(1), 1), (uuid(2), 7))
        ]
        spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
        (directory / "nvidia.json").write_text(json.dumps(spec | {"containerEdits": {"deviceNodes": [node("ctl")]}}))
        daemon.restart()
        yield daemon


@pytest.fixture(scope="module")
def driven_daemon() -> Iterator[Dockerd]:
    """A Docker without NVIDIA's tools, on a machine with a driver and three GPUs."""
    nodes = {"nvidia1": (1, 5), "nvidia4": (1, 3), "nvidia7": (1, 7), "nvidiactl": (1, 3), "nvidia-uvm": (1, 3)}
    with own_daemon(driver=nodes, config={"runtimes": {}}) as daemon:
        yield daemon


@pytest.fixture
def bare(place: Path, driven_daemon: Dockerd) -> Generator[Runner, None, None]:
    runner = Runner(place, driven_daemon)
    runner.programs = [driven_daemon.directory / "driver" / "bin"]
    yield runner
    runner.close()


@pytest.fixture
def first(bare: Runner) -> Runner:
    """The same with version 1 of nvidia-docker."""
    bare.programs.append(gpu_programs.nvidia_docker_1(bare.daemon.directory))
    return bare


def node(number: int | str) -> dict[str, object]:
    return {"path": f"/dev/nvidia{number}", "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3}


@pytest.fixture
def cdi(place: Path, newer: Dockerd) -> Generator[Runner, None, None]:
    runner = Runner(place, newer)
    yield runner
    runner.close()


# ---- what arrives ----


@pytest.mark.parametrize("mode", ["gpus", "runtime", "nvidia-docker"])
def test_exactly_the_leased_devices_arrive(old: Runner, mode: str) -> None:
    uuids = f"{uuid(0)},{uuid(2)}"
    wanted = ["/dev/nvidia0", "/dev/nvidia2", f"[{uuids}]", "2"]
    assert old.seen(LOOK, mode=mode, places=(0, 2)) == wanted
    message = (old.daemon.directory / "hook.log").read_text().splitlines()[-1]
    assert message.split()[0] == uuids
    assert {"compute", "utility"} <= set(message.split()[1].split(","))


@pytest.mark.parametrize("mode", ["gpus", "runtime", "nvidia-docker"])
def test_all_capabilities_are_requested_one_by_one_and_seen_inside(old: Runner, mode: str) -> None:
    env = {"NVIDIA_DRIVER_CAPABILITIES": "all"}
    every = "compute,compat32,graphics,utility,video,display,ngx"
    assert old.seen("echo $NVIDIA_DRIVER_CAPABILITIES", mode=mode, places=(0,), env=env) == [every]
    assert (old.daemon.directory / "hook.log").read_text().splitlines()[-1] == f"{uuid(0)} {every}"


def test_a_capability_that_the_operator_does_not_allow_is_refused_before_the_program_starts(
    old: Runner, place: Path
) -> None:
    file = place / "node.yaml"
    file.write_text("docker: {gpu_capabilities: [video]}\n")
    wanted = {"NVIDIA_DRIVER_CAPABILITIES": "compute,graphics"}
    fault, problem = old.refused(mode="runtime", places=(0,), env=wanted, node_file=str(file))
    assert fault == "node"
    assert problem.startswith("gpu_capabilities=graphics: this node allows compute, utility, video (docker.gpu_capab")
    allowed = {"NVIDIA_DRIVER_CAPABILITIES": "video"}
    script = "echo $NVIDIA_DRIVER_CAPABILITIES"
    seen = old.seen(script, mode="runtime", places=(0,), env=allowed, node_file=str(file))
    assert seen == ["compute,utility,video"]


OWN = [(uuid(4), 0, 4), (uuid(1), 2, 1)]
"""Two GPUs whose minor numbers are not their places."""


@pytest.mark.parametrize("mode", ["devices", "auto"])
def test_device_nodes_and_the_drivers_files_arrive_by_ourselves(bare: Runner, mode: str) -> None:
    script = f'{LOOK}; ls /dlapp/driver; echo "$LD_LIBRARY_PATH"; nvidia-smi -L | grep -c {uuid(4)}; : >/dev/nvidia4'
    seen = bare.seen(script, mode=mode, gpus=OWN)
    nodes = ["/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidia4", "/dev/nvidiactl"]
    assert seen == [*nodes, "[void]", "2", "libcuda.so.1", "libnvidia-ml.so.1", "/dlapp/driver", "1"]
    assert bare.seen("ls /dev/nvidia[0-9]*", mode=mode, gpus=OWN[:1]) == ["/dev/nvidia4"]


def test_nvidia_smi_is_the_machines_where_an_image_has_none(bare: Runner) -> None:
    assert bare.seen("nvidia-smi -L | wc -l", mode="devices", gpus=OWN, image=IMAGE) == ["2"]


def test_the_users_libraries_are_searched_after_the_drivers(bare: Runner) -> None:
    env = {"LD_LIBRARY_PATH": "/opt/mine/lib"}
    seen = bare.seen('echo "$LD_LIBRARY_PATH"', mode="devices", gpus=OWN[:1], env=env)
    assert seen == ["/dlapp/driver:/opt/mine/lib"]


def test_without_nvidia_uvm_no_program_starts_unless_nvidias_program_makes_it(place: Path) -> None:
    nodes = {"nvidia4": (1, 3), "nvidiactl": (1, 3)}
    with own_daemon(driver=nodes, config={"runtimes": {}}) as daemon:
        runner = Runner(place, daemon)
        runner.programs = [daemon.directory / "driver" / "bin"]
        try:
            fault, problem = runner.refused(mode="auto", gpus=OWN[:1])
            assert fault == "node"
            assert "devices: no /dev/nvidia-uvm, without which CUDA fails (nvidia-modprobe -u -c=0 as root" in problem
            modprobe = runner.programs[0] / "nvidia-modprobe"
            modprobe.write_text('#!/bin/sh\n[ "$*" = "-u -c=0" ] && mknod -m 666 /dev/nvidia-uvm c 1 3\n')
            modprobe.chmod(0o755)
            seen = runner.seen("ls /dev/nvidia*", mode="auto", gpus=OWN[:1])
            assert seen == ["/dev/nvidia-uvm", "/dev/nvidia4", "/dev/nvidiactl"]
        finally:
            runner.close()


@pytest.mark.parametrize("mode", ["nvidia-docker", "auto"])
def test_exactly_the_leased_devices_arrive_by_version_1_of_nvidia_docker(first: Runner, mode: str) -> None:
    uuids = f"[{uuid(4)},{uuid(1)}]"
    seen = first.seen(f"{LOOK}; ls -d /usr/local/nvidia", mode=mode, gpus=OWN)
    nodes = ["/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidia4", "/dev/nvidiactl"]
    assert seen == [*nodes, uuids, "2", "/usr/local/nvidia"]
    assert first.seen("ls /dev/nvidia[0-9]*", mode=mode, gpus=OWN[1:]) == ["/dev/nvidia1"]


@pytest.mark.parametrize("mode", ["devices", "nvidia-docker", "gpus", "auto"])
def test_without_an_ask_no_device_of_the_machine_arrives(first: Runner, mode: str) -> None:
    assert first.seen(LOOK, mode=mode) == ["[void]", "0"]


def test_auto_chooses_an_available_mode(old: Runner) -> None:
    assert old.seen(LOOK, mode="auto", places=(1,)) == ["/dev/nvidia1", f"[{uuid(1)}]", "1"]


def test_devices_arrive_by_cdi(cdi: Runner) -> None:
    script = f"{LOOK}; echo $CARD0 $CARD1"
    seen = cdi.seen(script, mode="auto", places=(0, 1))
    assert seen == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "[void]", "2", "here", "here"]
    assert cdi.seen(LOOK, mode="cdi", places=(1,)) == ["/dev/nvidia1", "/dev/nvidiactl", "[void]", "1"]


def test_without_a_request_an_image_that_wants_all_gpus_gets_none(old: Runner) -> None:
    assert old.seen(LOOK, mode="runtime") == ["[void]", "0"]


@pytest.mark.slow
def test_without_a_request_nvidias_default_runtime_passes_no_gpu(place: Path) -> None:
    with own_daemon(config={"default-runtime": "nvidia"}) as daemon:
        runner = Runner(place, daemon)
        try:
            assert runner.seen(LOOK, mode="auto") == ["[void]", "0"]
            assert runner.seen(LOOK, mode="gpus", places=(1,)) == ["/dev/nvidia1", f"[{uuid(1)}]", "1"]
            # One that does not heed "void".
            (daemon.directory / "always").touch()
            fault, problem = runner.refused(mode="auto")
            assert (fault, problem) == ("node", "the container sees /dev/nvidia0, although no GPU was asked for")
        finally:
            runner.close()


def test_odd_variables_pass_through_nvidia_docker(old: Runner) -> None:
    env = {"LINES": "one\n two\n", "ODD": "a=b 'c' \"d\" $e #f", "EMPTY": "", "PATH": "/bin"}
    script = 'printf "%s|" "$LINES" "$ODD" "$EMPTY" "$PATH"'
    driven = old.start(script, mode="nvidia-docker", places=(0,), env=env)
    assert driven.end()["code"] == 0
    assert driven.out().decode() == "one\n two\n|a=b 'c' \"d\" $e #f||/bin|"


# ---- which way it is, and why ----


def test_the_doctor_reports_the_gpu_mode_and_the_reason(old: Runner, bare: Runner) -> None:
    verdict, words = old.doctor("auto")
    assert verdict == "pass"
    assert words.startswith("runtime: Docker 20.10.")
    assert "has the runtime nvidia; cdi: Docker 20.10." in words
    assert words.endswith("has no CDI; 25.0 has; gpus: no nvidia-container-runtime-hook on PATH")
    verdict, words = bare.doctor("auto")
    assert verdict == "pass"
    assert words.startswith("devices: the driver's device nodes and libraries are there; cdi: Docker 20.10.")
    verdict, words = bare.doctor("runtime")
    assert verdict == "fail"
    assert words.startswith("runtime.docker.gpu_mode is runtime: dockerd has no runtime nvidia")


def test_auto_follows_a_daemon_that_is_reconfigured_while_it_runs(bare: Runner) -> None:
    daemon, pid = bare.daemon, bare.daemon.pid
    device = OWN[:1]
    assert bare.seen('echo "[$NVIDIA_VISIBLE_DEVICES]"', mode="auto", gpus=device) == ["[void]"]  # the mode devices
    path = daemon.directory / "daemon.json"
    before = path.read_text()
    try:
        path.write_text(json.dumps({"runtimes": {"nvidia": {"path": str(gpu_programs.runtime(daemon.directory))}}}))
        os.kill(pid, signal.SIGHUP)
        wait_until(lambda: b"nvidia" in daemon.docker("info", "--format={{.Runtimes}}").stdout, "dockerd reads it")
        assert bare.seen('echo "[$NVIDIA_VISIBLE_DEVICES]"', mode="auto", gpus=device) == [f"[{uuid(4)}]"]
    finally:
        path.write_text(before)
        os.kill(pid, signal.SIGHUP)
        wait_until(lambda: b"nvidia" not in daemon.docker("info", "--format={{.Runtimes}}").stdout, "and this")
    assert bare.seen('echo "[$NVIDIA_VISIBLE_DEVICES]"', mode="auto", gpus=device) == ["[void]"]
    assert daemon.pid == pid


def test_the_check_makes_two_read_only_calls(dockerd: Dockerd) -> None:
    asked = []

    class Asked(Client):
        def call(self, method: str, path: str, **options: Any) -> Any:
            asked.append(f"{method} {path}")
            return super().call(method, path, **options)

    assert facts_of(Asked(dockerd.host, 120)).version.startswith("20.10.")
    assert asked == ["GET /version", "GET /info"]


# ---- what is refused, before the payload runs ----


def test_cdi_on_a_docker_that_has_none_is_the_nodes_fault(old: Runner) -> None:
    fault, problem = old.refused(mode="cdi", places=(0,))
    assert fault == "node"
    assert problem.startswith("runtime.docker.gpu_mode is cdi: Docker 20.10.")


def test_a_device_that_the_specification_does_not_have_is_named(cdi: Runner) -> None:
    fault, problem = cdi.refused(mode="cdi", places=(5,))
    assert fault == "node"
    assert f"nvidia.com/gpu has no {uuid(5)}" in problem


def test_a_device_unknown_to_nvidias_tools_is_reported_with_their_message(old: Runner) -> None:
    fault, problem = old.refused(mode="gpus", gpus=[("GPU-gone", 0, 0)])
    assert fault == "node"
    assert "GPU-gone: unknown device" in problem


def test_a_device_that_nvidia_docker_1_ignores_is_not_started(first: Runner) -> None:
    fault, problem = first.refused(mode="nvidia-docker", gpus=OWN, image=IMAGE)
    assert fault == "node"
    assert problem == (
        "the container was not created with its GPUs: nvidia-docker added no /dev/nvidia4 "
        "(version 1 needs the image's label com.nvidia.volumes.needed)"
    )


def test_a_device_unknown_to_nvidia_docker_is_reported_with_its_message(first: Runner) -> None:
    fault, problem = first.refused(mode="nvidia-docker", gpus=[(uuid(5), 0, 5)])
    assert fault == "node"
    assert problem.endswith(f"Error: invalid device: {uuid(5)}")


def test_a_device_without_a_device_node_is_named(bare: Runner) -> None:
    fault, problem = bare.refused(mode="devices", gpus=[*OWN, (uuid(5), 3, 5)])
    assert (fault, problem) == ("node", f"runtime.docker.gpu_mode is devices: no /dev/nvidia5 ({uuid(5)})")


def test_a_node_of_the_right_name_that_is_another_device_is_seen(bare: Runner) -> None:
    # NVIDIA's hook of the tests gives 1:3 for any GPU; outside, this one is 1:5.
    fault, problem = bare.refused(mode="gpus", gpus=OWN[1:])
    assert fault == "node"
    assert problem.startswith("/dev/nvidia1 in the container is another device than outside (1:3, not 1:5); it was to")


def test_a_container_that_sees_anothers_device_never_runs_its_payload(cdi: Runner) -> None:
    fault, problem = cdi.refused(mode="cdi", places=(2,))
    assert fault == "node"
    assert problem == f"the container sees /dev/nvidia7, which is not its own; it was to have gpu2 ({uuid(2)})"


@pytest.mark.slow
def test_nvidia_smi_that_fails_inside_is_the_nodes_fault(old: Runner) -> None:
    broken = "dlapp-test/broken:1"
    old.daemon.docker("run", "--name", "broken", "--network=none", GPU_IMAGE, "touch", "/smi-fails")
    old.daemon.docker("commit", "broken", broken)
    old.daemon.docker("rm", "broken")
    fault, problem = old.refused(mode="gpus", places=(0,), image=broken)
    old.daemon.docker("rmi", broken)
    assert fault == "node"
    assert problem.startswith(
        "nvidia-smi does not work in the container: Failed to initialize NVML: Unknown Error; it was to have gpu0"
    )
