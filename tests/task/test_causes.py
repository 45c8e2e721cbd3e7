"""Causes of failures that a whole task names: what the kernel, Docker and a registry really do."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dlapp.system.processes.oom_kills import kill_count
from dlapp.values.launch_spec import DockerSettings
from dlapp.values.messages import Diagnosis, Phase, TaskResult
from dlapp.values.spec import Resources
from tests.services.containers.dockerd import IMAGE, Dockerd, busybox_root
from tests.services.containers.registry import Registry
from tests.services.disks import small_disk
from tests.task.fake_am import FakeAm, workspace_archive


def failed(place: Path, script: str, launch: dict[str, Any], **assignment: Any) -> TaskResult:
    """Return the result of a task whose payload fails.

    Args:
        place: of the test.
        script: of the payload.
        launch: of `FakeAm.start`.
        assignment: of `FakeAm`.
    """
    with FakeAm(place / "containers", **workspace_archive(place, {"run.sh": script}), **assignment) as am:
        am.start(**launch)
        return am.result()


def cause(result: TaskResult) -> Diagnosis:
    assert result.diagnosis is not None, result
    return result.diagnosis


@pytest.mark.docker
def test_a_payload_that_docker_ended_for_memory_is_named(place: Path, dockerd: Dockerd) -> None:
    # tail keeps what has no line end.
    script = "head -c 200000000 /dev/zero | tail; echo ended with $? >&2; kill -KILL $$"
    limits = Resources(memory_mib=64)
    launch = {"docker": DockerSettings(dockerd.host, "none")}
    result = failed(place, script, launch, docker_image=IMAGE, resources=limits)
    assert (cause(result).rule, cause(result).fault.value) == ("memory_limit", "user")


@pytest.mark.docker
def test_a_plain_payload_is_killed_when_the_kernel_kills_for_memory(place: Path, dockerd: Dockerd) -> None:
    script = f"until [ -e {place}/go ]; do sleep 0.02; done; kill -KILL $$"
    with FakeAm(place / "containers", **workspace_archive(place, {"run.sh": script})) as am:
        am.start()
        am.wait_until(lambda: any(report.phase is Phase.RUNNING for report in am.reports))
        before = kill_count()
        words = ("run", "--rm", "--detach", "--network", "none", "--memory", "16m", IMAGE)
        dockerd.docker(*words, "sh", "-c", "head -c 200000000 /dev/zero | tail")
        am.wait_until(lambda: kill_count() != before)
        (place / "go").touch()
        result = am.result()
    assert result.message == "the kernel killed a process of this node for lack of memory at that time"
    assert (cause(result).rule, result.signal) == ("node_memory", 9)


@pytest.mark.docker
def test_an_image_that_does_not_exist_is_named(place: Path, dockerd: Dockerd) -> None:
    with Registry(busybox_root({})) as registry:
        name = registry.image.rpartition(":")[0]
        launch = {"docker": DockerSettings(dockerd.host, "none")}
        result = failed(place, "true", launch, docker_image=f"{name}:none")
    assert (cause(result).rule, cause(result).fault.value) == ("image_missing", "user")
    assert cause(result).retry is False


@pytest.mark.root("to mount a small disk")
def test_a_full_disk_is_named(place: Path) -> None:
    with small_disk(place) as disk:
        result = failed(place, f'exec python3 -c \'open("{disk}/ballast", "w").write("x" * (8 << 20))\'', {})
    found = cause(result)
    assert (found.rule, found.fault.value) == ("disk_full", "user")
    assert found.evidence is not None
    assert found.evidence.line == "OSError: [Errno 28] No space left on device"


@pytest.mark.root
@pytest.mark.parametrize(
    ("script", "is_executable"),
    [
        ("#!/bin/sh\ntrue", True),
        ("./run.sh", False),
        ("cp /bin/true x; chmod +x x; ./x", False),
        ("exec /dev/shm", None),
    ],
)
def test_a_script_on_a_mount_without_execution_names_the_mount(
    place: Path, script: str, is_executable: bool | None
) -> None:
    with small_disk(place) as disk:
        subprocess.run(["mount", "-o", "remount,noexec", disk], check=True)
        run_sh = "exec ./other.sh" if is_executable else script
        files: dict[str, str | bytes] = {"run.sh": run_sh, "other.sh": script}
        with FakeAm(disk / "deep/containers", **workspace_archive(disk, files)) as am:
            am.start()
            result = am.result()
    assert result.exit_code == 126
    assert re.search(
        rf"{disk}/deep/containers\S* lies on a file system that executes nothing \(noexec\)", result.message
    )
    assert cause(result).rule == "noexec"


def test_a_script_that_is_not_executable_for_another_reason_names_no_mount(place: Path) -> None:
    result = failed(place, "cp /bin/true x; chmod 600 x; ./x", {})
    assert (result.exit_code, cause(result).rule) == (126, "not_executable")


@pytest.mark.docker
@pytest.mark.parametrize(
    ("entrypoint", "script", "rule", "words"),
    [
        ('["/entry-env.sh"]', "mytool", "entrypoint_not_run", "command=/entry-env.sh ./train.sh"),
        ('["/bin/sh", "-c", "a b"]', "exec mytool", "entrypoint_not_run", "command=/bin/sh -c 'a b' ./train.sh"),
        ("/entry {x}", "sh -c mytool", "entrypoint_not_run", "command=/bin/sh -c '/entry {x}' ./train.sh"),
        ('["/entry-env.sh"]', "/bin/sh -c 'exit 126'", "not_executable", "permissions"),
        ("[]", "mytool", "command_missing", "PATH"),
    ],
)
def test_a_missing_command_in_an_image_with_an_entrypoint_names_it(
    place: Path, dockerd: Dockerd, entrypoint: str, script: str, rule: str, words: str
) -> None:
    entry = b'#!/bin/sh\nexport PATH=/opt/env/bin:$PATH\nexec "$@"\n'
    image = f"entry-{os.getpid()}:1"
    dockerd.docker(
        "import", "--change", f"ENTRYPOINT {entrypoint}", "-", image, stdin=busybox_root({"entry-env.sh": entry})
    )
    try:
        result = failed(place, script, {"docker": DockerSettings(dockerd.host, "none")}, docker_image=image)
    finally:
        dockerd.docker("rmi", image)
    assert cause(result).rule == rule
    assert words in cause(result).next_step
