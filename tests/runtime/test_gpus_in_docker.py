"""Each way of giving a container its GPUs, on real dockerds: what arrives inside, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.driver import Driven
from tests.services import gpu_programs, newer_docker
from tests.services.dockerd import GPU_IMAGE, Dockerd, own_daemon

pytestmark = pytest.mark.docker

LOOK = 'ls /dev/nvidia* 2>/dev/null; echo "[$NVIDIA_VISIBLE_DEVICES]"; nvidia-smi -L | wc -l'


def uuid(place: int) -> str:
    return f"GPU-{place:08d}-aaaa-bbbb-cccc-000000000000"


def cards(*places: int) -> list[tuple[str, int, int]]:
    return [(uuid(place), place, place) for place in places]


class Runner:
    """Runs scripts in containers of one daemon, each with a home of its own."""

    def __init__(self, directory: Path, daemon: Dockerd) -> None:
        self.daemon, self._directory, self._made = daemon, directory, list[Driven]()

    def start(self, script: str, *, mode: str, places: tuple[int, ...] = (), **options: Any) -> Driven:
        home = self._directory / str(len(self._made))
        home.mkdir()
        path = os.pathsep.join([str(gpu_programs.nvidia_docker(self.daemon.directory)), os.environ["PATH"]])
        driven = Driven(home, as_user=False, env={"PATH": path})
        self._made.append(driven)
        resources = {"memory_mib": 64, "gcores": len(places)}
        fields = {"image": GPU_IMAGE, "gpus": cards(*places), "resources": resources, "docker_gpu_mode": mode} | options
        return driven.run(script, docker_host=self.daemon.host, docker_lock_dir=str(self._directory), **fields)

    def seen(self, script: str, **options: Any) -> list[str]:
        """What a script printed that ended well."""
        driven = self.start(script, **options)
        assert driven.end()["code"] == 0
        return driven.out().decode().split()

    def refused(self, **options: Any) -> tuple[str, str]:
        """Whose fault it is that a payload was not run, and the words; nothing of it is left."""
        driven = self.start("echo it ran", **options)
        message = driven.hear("refused")
        assert driven.process is not None
        driven.process.wait(timeout=20)
        assert driven.out() == b""
        assert self.daemon.containers() == []
        return message["fault"], message["problem"]

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
    """A Docker with CDI, and two cards in its specification; a third name there leads to another's card."""
    try:
        programs = newer_docker.programs()
    except newer_docker.NoNewerDocker as reason:
        pytest.skip(str(reason))
    with own_daemon(programs, features={"cdi": True}) as daemon:
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


def node(number: int | str) -> dict[str, object]:
    return {"path": f"/dev/nvidia{number}", "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3}


@pytest.fixture
def cdi(place: Path, newer: Dockerd) -> Generator[Runner, None, None]:
    runner = Runner(place, newer)
    yield runner
    runner.close()


# ---- what arrives ----


@pytest.mark.parametrize("mode", ["gpus", "runtime", "nvidia-docker"])
def test_exactly_the_leased_cards_arrive(old: Runner, mode: str) -> None:
    uuids = f"{uuid(0)},{uuid(2)}"
    wanted = ["/dev/nvidia0", "/dev/nvidia2", f"[{uuids}]", "2"]
    assert old.seen(LOOK, mode=mode, places=(0, 2)) == wanted
    told = (old.daemon.directory / "hook.log").read_text().splitlines()[-1]
    assert told.split()[0] == uuids
    assert {"compute", "utility"} <= set(told.split()[1].split(","))


def test_auto_takes_what_is_there(old: Runner) -> None:
    assert old.seen(LOOK, mode="auto", places=(1,)) == ["/dev/nvidia1", f"[{uuid(1)}]", "1"]


def test_cards_arrive_by_cdi(cdi: Runner) -> None:
    script = f"{LOOK}; echo $CARD0 $CARD1"
    seen = cdi.seen(script, mode="auto", places=(0, 1))
    assert seen == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "[void]", "2", "here", "here"]
    assert cdi.seen(LOOK, mode="cdi", places=(1,)) == ["/dev/nvidia1", "/dev/nvidiactl", "[void]", "1"]


def test_without_an_ask_an_image_that_wants_all_gets_none(old: Runner) -> None:
    assert old.seen(LOOK, mode="runtime") == ["[void]", "0"]


def test_without_an_ask_a_default_runtime_of_nvidias_gives_none(place: Path) -> None:
    with own_daemon(**{"default-runtime": "nvidia"}) as daemon:
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


# ---- what is refused, before the payload runs ----


def test_cdi_on_a_docker_that_has_none_is_the_nodes_fault(old: Runner) -> None:
    fault, problem = old.refused(mode="cdi", places=(0,))
    assert fault == "node"
    assert problem.startswith("runtime.docker.gpu_mode is cdi: Docker 20.10.")


def test_a_card_that_the_specification_does_not_have_is_named(cdi: Runner) -> None:
    fault, problem = cdi.refused(mode="cdi", places=(5,))
    assert fault == "node"
    assert f"nvidia.com/gpu has no {uuid(5)}" in problem


def test_a_card_that_nvidias_tools_do_not_know_is_told_in_their_words(old: Runner) -> None:
    fault, problem = old.refused(mode="gpus", gpus=[("GPU-gone", 0, 0)], resources={"memory_mib": 64, "gcores": 1})
    assert fault == "node"
    assert "GPU-gone: unknown device" in problem


def test_a_container_that_sees_anothers_card_never_runs_its_payload(cdi: Runner) -> None:
    fault, problem = cdi.refused(mode="cdi", places=(2,))
    assert fault == "node"
    assert problem == f"the container sees /dev/nvidia7, which is not its own; it was to have gpu2 ({uuid(2)})"


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
