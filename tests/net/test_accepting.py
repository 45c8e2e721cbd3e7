"""Acceptance of connections: what one peer does ends its own connection alone."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest

from dlapp.net.accepting import Accepted, accept_one


class Listener:
    """A listener whose accept raises an error."""

    def __init__(self, error: OSError) -> None:
        self.error = error

    def accept(self) -> Any:
        raise self.error


def result_of(number: int) -> Accepted:
    listener: Any = Listener(OSError(number, os.strerror(number)))
    return accept_one(listener, lambda *_: None)


@pytest.mark.parametrize(
    "number", [errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH, errno.EPERM, errno.ETIMEDOUT]
)
def test_an_error_of_a_connection_that_ended_in_the_backlog_is_ignored(number: int) -> None:
    assert result_of(number) is Accepted.ONE


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_room_the_caller_pauses(number: int) -> None:
    assert result_of(number) is Accepted.FULL


@pytest.mark.parametrize("number", [errno.EBADF, errno.EINVAL, errno.ENOTSOCK])
def test_a_listener_that_listens_no_more_is_the_callers_error(number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)):
        result_of(number)


def test_a_listener_that_does_not_block_has_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        assert accept_one(listener, lambda *_: None) is Accepted.NONE


@pytest.mark.parametrize("error", [OSError(errno.ENOTCONN, "not connected"), ValueError("no"), RecursionError()])
def test_an_error_at_the_start_of_a_connection_closes_it_and_is_reported(error: Exception) -> None:
    def fails(*_: object) -> None:
        raise error

    lines: list[str] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), timeout=60) as peer,
    ):
        assert accept_one(listener, fails, lines.append) is Accepted.ONE
        assert peer.recv(1) == b""
    assert lines == ([] if isinstance(error, OSError) else [f"a connection was closed by an internal error: {error!r}"])
