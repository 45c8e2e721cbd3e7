"""Ports of an application on which two of its own programs want to listen, beside ports that somebody else has."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.task.failure import with_cause
from dlapp.task.port_conflicts import Listener, explain_conflict, listener_here
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import Fault, TaskResult
from dlapp.values.roster import Member, Roster
from dlapp.values.spec import Framework
from tests.services.ports import free_range

RANK_0 = "two programs took rank 0: check RANK/NODE_RANK"
APPLICATION = ApplicationId(1_700_000_000_000, 42)
MASTER, OWN, AWAY = 20_001, 20_002, 20_003
ROSTER = Roster(
    generation=0,
    version=0,
    members=(
        Member(role="worker", role_index=0, index=0, host="a", address="10.0.0.1", ports=(MASTER,)),
        Member(role="worker", role_index=1, index=1, host="a", address="10.0.0.1", ports=(OWN,)),
        Member(role="worker", role_index=2, index=2, host="b", address="10.0.0.2", ports=(AWAY,)),
    ),
)


def explained(
    line: str,
    index: int = 1,
    *,
    framework: Framework = Framework.PYTORCH,
    listen: dict[int, Listener] | None = None,
) -> str:
    found = listen or {}
    return explain_conflict(line, ROSTER, index, framework, lambda port: found.get(port, Listener.NONE))


MESSAGES = {
    "PyTorch 2": "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
    "address. port: PORT, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    "PyTorch 1": "RuntimeError: The server socket has failed to bind to [::]:PORT (errno: 98 - Address already in "
    "use).",
    "NCCL": "node:7:7 [0] misc/socket.cc:486 NCCL WARN socketStartListen: bind to 10.0.0.1<PORT> failed : Address "
    "already in use",
    "gRPC": "E0000 00:00:1722 14 add_port.cc:83] No address added out of total 1 resolved for '[::]:PORT'; errno: 98",
    "gRPC, escaped": 'UNKNOWN:Unable to configure socket {target_address:"ipv6:%5B::%5D:PORT", errno:98, '
    "children:[Address already in use]}",
    "asyncio": "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', PORT): address already in "
    "use",
    "Go": "2026/11/28 13:00:00 listen tcp :PORT: bind: address already in use",
    "Node.js": "Error: listen EADDRINUSE: address already in use :::PORT",
    "accelerate": "ConnectionError: Tried to launch distributed communication on port `PORT`, but another process is "
    "utilizing it.",
    "gunicorn": "[ERROR] Connection in use: ('0.0.0.0', PORT)",
    "Windows": "OSError: [WinError 10048] Only one usage of each socket address (protocol/network address/port) is "
    "normally permitted: localhost:PORT",
}


@pytest.mark.parametrize("library", MESSAGES)
def test_a_port_conflict_names_the_port_of_the_other_container(tmp_path: Path, library: str) -> None:
    (tmp_path / "stdout").touch()

    def failed(port: int) -> TaskResult:
        (tmp_path / "stderr").write_text(MESSAGES[library].replace("PORT", str(port)) + "\n")
        ended = TaskResult(fault=Fault.USER, exit_code=1)
        return with_cause(ended, str(tmp_path), pytest.fail, find_conflict=explained)

    found = failed(MASTER).diagnosis
    assert found is not None
    assert (found.rule, found.cause, found.fault, found.retry) == ("own_address_in_use", RANK_0, Fault.USER, False)
    assert found.evidence is not None
    assert failed(MASTER).message == f"the application itself uses the address: {RANK_0}"
    other = failed(6006).diagnosis
    assert other is not None
    assert (other.rule, other.fault, other.retry) == ("address_in_use", Fault.NODE, True)


def test_a_line_may_name_other_numbers() -> None:
    line = f"[2026-11-28 13:00:20001 pid {MASTER}] socket.cpp:20001 OSError: [Errno 98] Address already in use"
    assert explained(line) == ""
    assert explained(f"{line} 0.0.0.0:{MASTER}") == RANK_0


def test_a_port_of_a_container_on_another_host_is_no_conflict() -> None:
    assert explained(f"bind to [::]:{AWAY} failed: Address already in use") == ""


@pytest.mark.parametrize(
    ("listener", "is_ours"), [(Listener.NONE, True), (Listener.OURS, True), (Listener.ANOTHER, False)]
)
def test_a_programs_own_port_conflicts_only_with_another_application(listener: Listener, is_ours: bool) -> None:
    found = explained(f"port: {MASTER}, name: EADDRINUSE", 0, listen={MASTER: listener})
    assert found == (RANK_0 if is_ours else "")


def test_without_a_port_in_the_line_the_listeners_decide() -> None:
    line = "OSError: [Errno 98] Address already in use"
    assert explained(line) == explained(line, listen={MASTER: Listener.ANOTHER}) == ""
    assert explained(line, listen={MASTER: Listener.OURS}) == RANK_0
    assert explained(line, 0, listen={MASTER: Listener.OURS}) == RANK_0
    # Without a framework another container's server is no reason to suspect it.
    assert explained(line, framework=Framework.NONE, listen={MASTER: Listener.OURS}) == ""


@pytest.mark.parametrize(
    ("framework", "port", "advice"),
    [
        (Framework.TORCHRUN, MASTER, RANK_0),
        (Framework.JAX, MASTER, "two programs took process 0: check JAX_PROCESS_ID"),
        (Framework.TENSORFLOW, OWN, "two programs took task worker 1: check TF_CONFIG"),
        (Framework.DMLC, OWN, "two programs took a worker's port: check PORT"),
        (Framework.PYTORCH, OWN, f"two programs listen on port {OWN}, which is that of worker 1"),
        (Framework.NONE, MASTER, f"two programs listen on port {MASTER}, which is that of worker 0"),
    ],
)
def test_the_advice_is_that_of_the_framework(framework: Framework, port: int, advice: str) -> None:
    assert explained(f"0.0.0.0:{port}: Address already in use", framework=framework) == advice


SERVE = """
import socket, sys
with socket.socket() as server:
    server.bind(("127.0.0.1", int(sys.argv[1])))
    server.listen()
    print("listens", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def serving(port: int, application: str) -> Iterator[None]:
    """Let a program of an application listen on a port."""
    env = {**os.environ, "DLAPP_APP_ID": application}
    command = [sys.executable, "-c", SERVE, str(port)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == b"listens\n"
        yield
        server.stdin.close()


def test_a_listener_of_the_application_is_distinguished_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_range(1)
    assert listener_here(APPLICATION, port) is Listener.NONE
    with serving(port, str(APPLICATION)):
        assert listener_here(APPLICATION, port) is Listener.OURS
        # Another user could give a program of their own this mark.
        monkeypatch.setattr(os, "getuid", lambda: 54_321)
        assert listener_here(APPLICATION, port) is Listener.ANOTHER
    monkeypatch.undo()
    with serving(port, "application_1_0001"):
        assert listener_here(APPLICATION, port) is Listener.ANOTHER
