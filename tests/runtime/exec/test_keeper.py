"""Commands beside a plain payload, by a real guardian: they run as they were asked for, and nothing of them stays."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.net import exec_frames as frames
from dlapp.net.exec_frames import ExecEnd, ExecRequest, FrameStream, StreamClosed
from dlapp.runtime.exec.keeper import send_request
from dlapp.runtime.process import Guardian, start_guardian
from dlapp.system.processes.proc import command_line
from dlapp.values.serialization import to_json
from tests.applications import wait_for


class Session:
    """A client of one command."""

    def __init__(self, guardian: Guardian, request: ExecRequest, env: dict[str, str], cwd: Path) -> None:
        channel, theirs = socket.socketpair()
        with channel, theirs:
            guardian.order("exec", (theirs.fileno(),), env=env, cwd=str(cwd))
            ours, other = socket.socketpair()
            with other:
                send_request(channel, to_json(request), other)
        self.stream = FrameStream(ours)
        self.output = {frames.OUTPUT: b"", frames.ERROR: b""}
        self.taken_bytes = 0
        self.end: ExecEnd | None = None

    def read_available(self) -> None:
        """Take what has come, or comes within a moment."""
        if select.select([self.stream], [], [], 0.1)[0]:
            for kind, body in self.stream.receive():
                match kind:
                    case frames.END:
                        self.end = frames.read_end(body)
                        self.stream.close()
                        return
                    case frames.CONSUMED:
                        self.taken_bytes += int.from_bytes(body)
                    case _:
                        self.output[kind] += body
        self.stream.flush()

    def expect(self, text: bytes, timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.output[frames.OUTPUT]:
            assert time.monotonic() < deadline, self.output
            self.read_available()

    def wait(self, timeout_s: float = 120.0) -> ExecEnd:
        deadline = time.monotonic() + timeout_s
        while self.end is None:
            assert time.monotonic() < deadline, self.output
            self.read_available()
        return self.end

    def type(self, data: bytes) -> None:
        self.stream.send(frames.INPUT, data)


@pytest.fixture
def guardian() -> Iterator[Guardian]:
    found = Guardian(*start_guardian())
    try:
        yield found
    finally:
        found.close()


ENV = {"PATH": os.environ["PATH"], "GREETING": "hi there"}


@pytest.fixture
def session(guardian: Guardian, tmp_path: Path) -> Iterator[object]:
    with contextlib.ExitStack() as stack:

        def begin(*command: str, **fields: object) -> Session:
            request = ExecRequest(command=command, **fields)  # type: ignore[arg-type]
            one = Session(guardian, request, ENV, tmp_path)
            stack.callback(one.stream.close)
            return one

        yield begin


def sleepers(marker: str) -> list[int]:
    """Return the processes whose command line has a marker, but for those that look."""
    found = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in found if marker.encode() in command_line(pid)]


def test_a_command_has_the_payloads_environment_and_separate_streams(session, tmp_path) -> None:  # type: ignore[no-untyped-def]
    one = session("sh", "-c", 'pwd; echo "$GREETING"; echo oh >&2; cat; exit 7')
    assert one.wait() == ExecEnd(7)
    assert one.output == {frames.OUTPUT: f"{tmp_path}\nhi there\n".encode(), frames.ERROR: b"oh\n"}


def test_input_reaches_it_byte_for_byte_and_its_end_too(session) -> None:  # type: ignore[no-untyped-def]
    data = os.urandom(3 * frames.WINDOW_BYTES)
    one = session("sh", "-c", "cat; echo over >&2", interactive=True)
    sent = 0
    while one.end is None:
        while sent < len(data) and sent - one.taken_bytes < frames.WINDOW_BYTES:
            piece = data[sent : sent + min(frames.MAX_BODY_BYTES, frames.WINDOW_BYTES - (sent - one.taken_bytes))]
            one.type(piece)
            sent += len(piece)
            if sent == len(data):
                one.stream.send(frames.INPUT_END)
        one.read_available()
    assert (one.end, one.output) == (ExecEnd(0), {frames.OUTPUT: data, frames.ERROR: b"over\n"})


def test_signals_pass_input_that_the_command_does_not_read(session) -> None:  # type: ignore[no-untyped-def]
    one = session(
        "sh", "-c", "trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.1; done", interactive=True
    )
    one.expect(b"ready")
    one.type(b"x" * frames.WINDOW_BYTES)
    one.stream.send(frames.SIGNAL, bytes([signal.SIGINT]))
    assert one.wait().code == 3
    assert one.output[frames.OUTPUT] == b"ready\ninterrupted\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [(("no-such-program",), 127), (("./plain",), 126), (("/tmp",), 126), (("sh", "-c", "kill -9 $$"), 137)],
)
def test_exit_codes_are_those_of_a_shell(session, tmp_path: Path, command: tuple[str, ...], code: int) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "plain").write_text("text")
    end = session(*command).wait()
    assert end.code == code
    assert (command[0] in end.message) == (code in (126, 127))


def test_a_terminal_has_its_size_its_kind_and_keys_that_are_signals(session) -> None:  # type: ignore[no-untyped-def]
    marker = f"{7_000_000 + os.getpid()}"
    script = f'test -t 0 && test -t 2 && echo "$TERM $(stty size)"; sleep {marker}; echo no'
    one = session("sh", "-c", script, interactive=True, terminal=True, rows=33, columns=77, term="xterm")
    one.expect(b"xterm 33 77")
    wait_for("it sleeps", lambda: sleepers(marker), 120.0)  # a shell that is just starting a program may miss the key
    one.type(b"\x03")
    assert one.wait().code == 128 + signal.SIGINT
    assert b"no" not in one.output[frames.OUTPUT].replace(b"^C", b"")


def test_a_terminal_changes_its_size(session) -> None:  # type: ignore[no-untyped-def]
    script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"
    one = session("sh", "-c", script, interactive=True, terminal=True, rows=10, columns=10)
    one.expect(b"ready")
    one.stream.send(frames.SIZE, frames.size_body(50, 120))
    assert one.wait().code == 0
    assert b"50 120" in one.output[frames.OUTPUT]


def test_background_processes_end_with_their_command(session) -> None:  # type: ignore[no-untyped-def]
    marker = f"{1_000_000 + os.getpid()}"
    script = f"sleep {marker} & setsid sleep {marker} & (trap '' TERM HUP; sleep {marker}) & echo over"
    one = session("sh", "-c", script)
    assert one.wait() == ExecEnd(0)
    assert one.output[frames.OUTPUT] == b"over\n"
    assert sleepers(marker) == []


@pytest.mark.parametrize("terminal", [False, True])
def test_a_command_whose_client_disconnects_is_ended(session, terminal: bool) -> None:  # type: ignore[no-untyped-def]
    marker = f"{2_000_000 + os.getpid() * 2 + terminal}"
    script = f"trap '' HUP TERM; setsid sleep {marker} & echo ready; sleep {marker}; sleep {marker}"
    one = session("sh", "-c", script, interactive=True, terminal=terminal)
    one.expect(b"ready")
    wait_for("it has started both", lambda: len(sleepers(marker)) == 2, 120.0)
    one.stream.close()
    wait_for("the command is ended", lambda: not sleepers(marker), 120.0)


@pytest.mark.parametrize("how", ["the guardian is closed", "the keeper is killed"])
def test_no_command_outlives_its_guardian_or_keeper(session, guardian: Guardian, how: str) -> None:  # type: ignore[no-untyped-def]
    marker = f"{3_000_000 + os.getpid() * 2 + len(how) % 2}"
    one = session("sh", "-c", f"echo ready; exec sleep {marker}")
    one.expect(b"ready")
    # The outer process says which pid the inner one has; the inner one obeys orders before that.
    wait_for("the guardian's first message", lambda: guardian.receive() or guardian.inner)
    if how == "the guardian is closed":
        guardian.close()
    else:
        (keeper,) = [pid for pid in guardian.pids() if b"dlapp-exec" in Path(f"/proc/{pid}/comm").read_bytes()]
        os.kill(keeper, signal.SIGKILL)
    with pytest.raises(StreamClosed):
        one.wait()
    wait_for("the command is ended", lambda: not sleepers(marker), 120.0)
