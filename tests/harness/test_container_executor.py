"""The stand-in of container-executor answers as Hadoop's, with the same exit codes, owners and modes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.services.executor.linux_executor import NM_ID, LinuxExecutor
from tests.services.users import place_for_everybody

pytestmark = pytest.mark.root("to run programs as other users")
ALICE, UID = "dlapp-alice", 64101
HOST = "127.0.1.1"
APPLICATION, CONTAINER = "application_1_0001", "container_1_0001_01_000001"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def place() -> Iterator[Path]:
    with place_for_everybody("executor") as one:
        yield one


@pytest.fixture
def executor(place: Path) -> Iterator[LinuxExecutor]:
    one = LinuxExecutor({ALICE: UID})
    one.prepare(place, "nm1", HOST)
    yield one
    one.clean()


@pytest.fixture
def run(place: Path, executor: LinuxExecutor) -> Run:
    """Call it as the NodeManager's user."""
    program = str(place / "executor-nm1" / "bin" / "container-executor")
    enter = executor.command(place, "nm1", place)

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [*enter, program, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    return call


def test_the_executor_refuses_unsafe_configurations_and_modes(run: Run, executor: LinuxExecutor, place: Path) -> None:
    assert run("--checksetup").returncode == 0
    assert run("--run-docker", "x").returncode == 32
    executor.configuration(place, "nm1").chmod(0o664)
    assert (done := run("--checksetup")).returncode == 24
    assert "must not be world or group writable" in done.stderr
    executor.configuration(place, "nm1").chmod(0o644)
    (place / "executor-nm1" / "bin" / "container-executor").chmod(0o6755)
    assert run("--checksetup").returncode == 22


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("dlapp-nobody", "User dlapp-nobody not found"),
        ("root", "Running as root is not allowed"),
        ("hdfs", "Requested user hdfs is banned"),
        ("daemon", "Requested user daemon is not whitelisted and has id 1,which is below the minimum allowed 1000"),
    ],
)
def test_users_that_it_may_not_become_are_named(run: Run, user: str, reason: str) -> None:
    done = run(user, user, 2, 1, 0)
    assert done.returncode == 255
    assert done.stdout.splitlines()[-1] == reason


def test_a_container_is_launched_signalled_and_deleted_as_its_user(run: Run, place: Path) -> None:
    local, logs, private = place / f"local-{HOST}", place / f"logs-{HOST}", place / f"tmp-{HOST}"
    for name, text in ("script", "#!/bin/sh\nid -u >who; umask >>who; exit 2\n"), ("tokens", "secret"):
        (private / name).write_text(text)
        os.chown(private / name, NM_ID, NM_ID)
        (private / name).chmod(0o600)
    done = run(ALICE, ALICE, 0, APPLICATION, CONTAINER, private / "tokens", local, logs, "sh", "-c", "id -u; pwd")
    application = local / "usercache" / ALICE / "appcache" / APPLICATION
    # The NodeManager makes this one.
    assert done.returncode == 20
    (local / "usercache").mkdir()
    os.chown(local / "usercache", NM_ID, NM_ID)
    done = run(ALICE, ALICE, 0, APPLICATION, CONTAINER, private / "tokens", local, logs, "sh", "-c", "id -u; pwd")
    assert done.stdout.splitlines()[-2:] == [str(UID), str(application)], done
    assert (local / "usercache" / ALICE).stat().st_mode & 0o7777 == 0o2750
    assert ((application / "tokens").stat().st_uid, (application / "tokens").stat().st_gid) == (UID, NM_ID)
    work, pid_file = application / CONTAINER, private / "pid"
    launch = (ALICE, ALICE, 1, APPLICATION, CONTAINER, work, private / "script", private / "tokens", "--http", pid_file)
    done = run(*launch, local, logs, "cgroups=none")
    assert (done.returncode, (private / "pid.exitcode").read_text()) == (2, "2")
    assert "Launching container..." in done.stdout.splitlines()
    assert (work / "who").read_text().split() == [str(UID), "0027"]
    for path, mode in (work, 0o710), (work / "container_tokens", 0o600), (logs / APPLICATION / CONTAINER, 0o750):
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (UID, mode)
    assert run(ALICE, ALICE, 2, pid_file.read_text(), 15).returncode == 9
    assert run(ALICE, ALICE, 5, work).returncode == 0
    assert run(ALICE, ALICE, 3, application).returncode == 0
    assert not application.exists()
    # What failed before the script ran is shown by the exit code, and "Launching container..." is missing.
    pid_file.unlink()
    (private / "pid.exitcode").unlink()
    done = run(*launch, local, logs, "cgroups=/tmp/not-a-cgroup")
    assert done.returncode == 27
    assert "Launching container..." not in done.stdout
