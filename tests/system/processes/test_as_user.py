"""Work that root has done in a child that is another user."""

from __future__ import annotations

import os
import resource
import threading
from typing import Any

import pytest

from dlapp.errors import Denied, NotFound
from dlapp.system import waits
from dlapp.system.processes import as_user
from dlapp.system.waits import Wait

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not root: only root can become another user")


def _state_of_child() -> dict[str, Any]:
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    with open("/proc/self/status", encoding="ascii") as file:
        status = dict(line.split(":", 1) for line in file)
    return {
        "uids": os.getresuid(),
        "descriptors": [fd for fd in descriptors if fd > 2 and _is_open(fd)],
        "leads its session": os.getsid(0) == os.getpid(),
        "no new privileges": status["NoNewPrivs"].strip(),
        "umask": status["Umask"].strip(),
        "variables": sorted(os.environ),
    }


def _is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def test_the_child_runs_as_the_user_without_root_privileges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1")
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        found = as_user.call(NOBODY, _state_of_child, timeout_s=120)
    finally:
        os.close(inherited)
    assert found["uids"] == [NOBODY] * 3
    assert len(found["descriptors"]) == 1, "the pipe that its answer goes through"
    assert found["leads its session"]
    assert (found["no new privileges"], found["umask"]) == ("1", "0077")
    assert "SECRET" not in found["variables"]


def _threads_of_a_wait() -> int:
    with Wait("hdfs://nn", None):
        return len(os.listdir("/proc/self/task"))


def test_no_thread_shows_waits_at_the_fork_or_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    at_fork: list[str] = []
    fork = os.fork

    def noting_fork() -> int:
        at_fork.extend(thread.name for thread in threading.enumerate())
        return fork()

    monkeypatch.setattr(os, "fork", noting_fork)
    with waits.report_waits(lambda _: None), Wait("hdfs://nn", None):
        assert as_user.call(NOBODY, _threads_of_a_wait, timeout_s=120) == 1
    assert at_fork
    assert "waits" not in at_fork


def test_a_descriptor_above_a_lowered_limit_is_closed_too() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    high = os.dup2(os.open("/dev/null", os.O_RDONLY), min(soft, 1000) - 1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 500), hard))
    try:
        found = as_user.call(NOBODY, _state_of_child, timeout_s=120)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(high)
    assert len(found["descriptors"]) == 1


def test_a_dlapp_error_of_the_child_is_raised_unchanged() -> None:
    def work() -> None:
        raise NotFound("it is not there")

    with pytest.raises(NotFound, match="it is not there"):
        as_user.call(NOBODY, work, timeout_s=120)


def test_a_user_without_a_passwd_entry_is_refused() -> None:
    with pytest.raises(Denied, match="uid 4000000000 has no entry in passwd"):
        as_user.call(4_000_000_000, lambda: None, timeout_s=120)
