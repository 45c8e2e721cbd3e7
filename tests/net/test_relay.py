"""The relay of a stream: what comes through, how it ends, and what a slow or broken side does to the other."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from dlapp.net.relay import CHUNK_BYTES, PAIR, copy_both, tune
from dlapp.system.processes.helper import HelperProcess
from dlapp.system.processes.proc import descendants
from tests.applications import wait_for
from tests.seeds import each_seed

PATIENCE_S = 120.0


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), timeout=PATIENCE_S)
        accepted, _ = server.accept()
    accepted.settimeout(PATIENCE_S)
    return client, accepted


@contextlib.contextmanager
def relayed(**settings: float) -> Iterator[tuple[socket.socket, socket.socket, threading.Thread]]:
    """Yield the two ends of a stream that a thread copies."""
    one, left = connected()
    other, right = connected()
    thread = threading.Thread(target=copy_both, args=(left, right), kwargs=settings)
    thread.start()
    with one, other:
        yield one, other, thread
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def received(sock: socket.socket, count: int | None = None) -> bytes:
    """Return what comes until the end, or so many bytes of it."""
    data = bytearray()
    while (count is None or len(data) < count) and (more := sock.recv(65536)):
        data += more
    return bytes(data)


def sending(sock: socket.socket, data: bytes) -> threading.Thread:
    """Begin to send data, and then the end of what is sent."""

    def run() -> None:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@each_seed("relay")
def test_both_directions_relay_independently_after_one_has_ended(seed: int) -> None:
    """Send 1, 1,000 or some 3 chunks of bytes each way, and end one direction before the other begins."""
    chance = random.Random(seed)
    forth, back = (chance.randbytes(chance.choice((1, 1000, 3 * CHUNK_BYTES + 7))) for _ in range(2))
    with relayed() as (one, other, _):
        one.sendall(forth[:1])
        assert received(other, 1) == forth[:1]
        sender = sending(one, forth[1:])
        assert received(other) == forth[1:]
        sender.join()
        answerer = sending(other, back)
        assert received(one) == back
        answerer.join()


def test_a_slow_reader_slows_its_sender_without_loss() -> None:
    with relayed() as (one, other, _):
        one.settimeout(0.5)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while True:
                sent += one.send(bytes(1 << 20))
                assert sent < 256 << 20, "nothing holds the sender back"
        one.settimeout(PATIENCE_S)
        # Its last answer, while nothing is read, and then its end: both come after what the reader has not read.
        other.sendall(b"stop")
        assert received(one, 4) == b"stop"
        one.close()
        assert len(received(other)) == sent


def test_data_sent_before_both_ends_closed_is_delivered() -> None:
    with relayed() as (one, other, thread):
        other.shutdown(socket.SHUT_WR)
        assert received(one) == b""
        size = 8 << 20
        sender = sending(one, bytes(size))
        assert len(received(other)) == size
        sender.join()
        thread.join(PATIENCE_S)


def test_a_side_that_breaks_resets_the_other_one() -> None:
    with relayed() as (one, other, _):
        one.sendall(b"x")
        assert received(other, 1) == b"x"
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
        with pytest.raises(ConnectionResetError):
            received(other)


def test_a_stream_without_a_byte_for_too_long_is_reset() -> None:
    with relayed(idle_s=0.05) as (one, other, _):
        for end in (one, other):
            with pytest.raises(ConnectionResetError):
                end.recv(1)


def test_a_lost_machine_is_noticed_within_minutes() -> None:
    # Nothing of it comes, not even a reset; the kernel asks, and ends the connection.
    one, other = connected()
    with one, other:
        tune(one)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        of_tcp = [
            one.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        ]
        assert of_tcp[0] + of_tcp[1] * of_tcp[2] <= 180


def test_the_process_copies_streams_until_its_owner_ends() -> None:
    with HelperProcess("relay") as process:
        streams = []
        for _ in range(3):
            one, left = connected()
            other, right = connected()
            process.send(PAIR, (left.fileno(), right.fileno()))
            left.close()
            right.close()
            streams.append((one, other))
        for number, (one, other) in enumerate(streams):
            one.sendall(b"%d" % number)
            other.settimeout(PATIENCE_S)
            assert received(other, 1) == b"%d" % number
        one, other = streams.pop()
        one.close()
        other.close()
        over: list[bytes] = []
        while not over:
            over += process.received()
        assert over == [b"o"]
    for one, other in streams:
        for end in (one, other):
            with contextlib.suppress(ConnectionResetError):
                assert end.recv(1) == b""
            end.close()


def children() -> set[int]:
    return set(descendants(os.getpid()))


def has_hung_up(process: HelperProcess) -> bool:
    """Return whether the last thread of a helper is gone, and its files with it."""
    assert process._channel is not None
    poll = select.poll()
    poll.register(process._channel, 0)
    return bool(poll.poll(0))


def test_a_helper_that_was_killed_is_started_again() -> None:
    with HelperProcess("relay") as process:
        before = children()
        for _ in range(2):
            one, left = connected()
            other, right = connected()
            with one, other:
                process.send(PAIR, (left.fileno(), right.fileno()))
                left.close()
                right.close()
                one.sendall(b"x")
                other.settimeout(PATIENCE_S)
                assert other.recv(1) == b"x"
                (pid,) = children() - before
                os.kill(pid, signal.SIGKILL)
                wait_for("its end", partial(has_hung_up, process))
                assert other.recv(1) == b"", "the kernel closes what a killed process had open"
        assert process.starts == 2


def test_a_helper_ends_with_its_owner_also_when_that_is_killed() -> None:
    ours, theirs = socket.socketpair()
    code = (
        "import os, signal, socket, sys; from dlapp.net.relay import PAIR; "
        "from dlapp.system.processes.helper import HelperProcess; "
        "fd = int(sys.argv[1]); a, b = socket.socketpair(); process = HelperProcess('relay'); "
        "process.send(PAIR, (fd, a.fileno())); a.close(); os.close(fd); b.sendall(b'begun'); b.recv(1); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()
    ours.settimeout(PATIENCE_S)
    # What its owner wrote into the stream: the helper holds the other end of it by now.
    assert received(ours, 5) == b"begun"
    ours.sendall(b"x")
    assert owner.wait(PATIENCE_S) == -signal.SIGKILL
    with contextlib.suppress(ConnectionResetError):
        assert ours.recv(1) == b"", "the helper lives"
    ours.close()
