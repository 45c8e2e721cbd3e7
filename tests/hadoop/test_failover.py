"""Calls over a real socket, with servers that answer well, badly, slowly and not at all."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from dlapp.errors import Denied, Unreachable
from dlapp.hadoop import connection
from dlapp.hadoop.connection import Connection
from dlapp.hadoop.errors import ConnectionLost, HadoopError, NotHadoop, NotRegistered, RemoteError, TokenRefused
from dlapp.hadoop.failover import RpcClient
from dlapp.hadoop.tokens import Token
from dlapp.hadoop.wire import Fields, encode
from dlapp.login import Login
from tests.hadoop.rpc_server import Refuse, RpcServer
from tests.services.http.proxy import Plan, Proxy
from tests.services.ports import refusing

TOKEN = Token(b"identifier", b"password", "K")
ANSWER = encode((2, 7))
QUICK_S = 0.3


def rpc(*addresses: tuple[str, int], token: Token | None = TOKEN, try_s: float = 120.0) -> RpcClient:
    return RpcClient("server", addresses, "Protocol", token or Login("alice"), try_s=try_s)


def rpc_that_tries_twice(*addresses: tuple[str, int], token: Token | None = TOKEN) -> RpcClient:
    """Make a client for whose clock the pause after the first try takes all the time; a slow machine has that time."""
    slept_s = 0.0

    def sleep(_: float) -> None:
        nonlocal slept_s
        slept_s += 600.0

    def clock() -> float:
        return time.monotonic() + slept_s

    return RpcClient("server", addresses, "Protocol", token or Login("alice"), try_s=120.0, clock=clock, sleep=sleep)


def allocate(one: RpcClient, timeout_s: float = 120.0) -> int:
    return one.call("allocate", b"", response_id, timeout_s=timeout_s)


def response_id(message: Fields) -> int:
    return message.signed(2)


@contextmanager
def answering(*data: bytes, hold: bool = False) -> Iterator[tuple[str, int]]:
    """A server that sends ``data`` to every client."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        done = threading.Event()

        def serve() -> None:
            while True:
                try:
                    link, _ = listening.accept()
                except OSError:
                    return
                # Who has heard enough leaves in the middle.
                with link, suppress(OSError):
                    for piece in data:
                        link.sendall(piece)
                    if hold:
                        done.wait(120)
                    else:
                        link.shutdown(socket.SHUT_WR)
                        link.settimeout(120)
                        while link.recv(1000):
                            pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            done.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("qop", ["auth", "auth-int", "auth-conf"])
def test_calls_work_with_every_protection(qop: str) -> None:
    with RpcServer(lambda method, data: ANSWER, TOKEN, qop) as server, rpc(server.address) as client:
        assert [allocate(client) for _ in range(3)] == [7, 7, 7]
        assert (server.connections, server.calls) == (1, 3)


def test_a_call_without_a_token_is_sent_as_the_user() -> None:
    with RpcServer(lambda method, data: ANSWER) as server, rpc(server.address, token=None) as client:
        assert allocate(client) == 7


def test_a_wrong_password_is_refused_at_once() -> None:
    with RpcServer(lambda method, data: ANSWER, TOKEN) as server:
        words = "connect: DIGEST-MD5: digest response format violation"
        other = rpc(server.address, token=Token(b"identifier", b"other", "K"))
        with other, pytest.raises(TokenRefused, match=words) as caught:
            allocate(other)
        assert isinstance(caught.value, Denied)
        assert server.connections == 1


def test_a_server_that_knows_only_the_previous_token_gets_it() -> None:
    newer, newest = Token(b"identifier", b"2", "K"), Token(b"identifier", b"3", "K")
    with RpcServer(lambda method, data: ANSWER, TOKEN) as server, rpc(server.address) as client:
        for _ in range(2):  # it comes with many answers
            client.use_token(newer)
        assert allocate(client) == 7
        client.close()
        server.token = newer
        assert allocate(client) == 7
        client.use_token(newest)
        client.close()
        assert allocate(client) == 7
        server.token = TOKEN
        client.close()
        with pytest.raises(TokenRefused):
            allocate(client)


def test_the_supported_one_of_several_mechanisms_is_chosen() -> None:
    offers = (("KERBEROS", "GSSAPI"), ("TOKEN", "SCRAM-SHA-256"), ("TOKEN", "DIGEST-MD5"))
    with RpcServer(lambda method, data: ANSWER, TOKEN, offers=offers) as server, rpc(server.address) as client:
        assert allocate(client) == 7


@pytest.mark.parametrize(
    ("offers", "named"),
    [
        ((("TOKEN", "SCRAM-SHA-256"),), "TOKEN SCRAM-SHA-256"),
        ((("KERBEROS", "GSSAPI"), ("TOKEN", "SCRAM-SHA-256")), "KERBEROS GSSAPI, TOKEN SCRAM-SHA-256"),
        ((("KERBEROS", "DIGEST-MD5"),), "KERBEROS DIGEST-MD5"),
        ((("SIMPLE", ""),), "SIMPLE"),
        ((), "SIMPLE"),
    ],
)
def test_a_server_that_offers_other_mechanisms_is_refused_at_once_with_their_names(
    offers: tuple[tuple[str, str], ...], named: str
) -> None:
    with RpcServer(lambda method, data: ANSWER, TOKEN, offers=offers) as server, rpc(server.address) as client:
        with pytest.raises(HadoopError) as caught:
            allocate(client)
        host, port = server.address
        assert str(caught.value) == (f"{host}:{port}: it offers {named}; dlapp supports only TOKEN DIGEST-MD5")
        assert (server.connections, server.calls) == (1, 0)


def test_a_login_without_the_required_token_is_refused_with_the_reason() -> None:
    with (
        RpcServer(lambda method, data: ANSWER, TOKEN) as server,
        rpc(server.address, token=None) as client,
        pytest.raises(Denied, match="SIMPLE authentication is not enabled"),
    ):
        allocate(client)


def test_an_exception_of_the_server_keeps_the_connection() -> None:
    answers: list[Refuse | bytes] = [
        Refuse("org.apache.hadoop.yarn.exceptions.ApplicationMasterNotRegisteredException", "not you"),
        ANSWER,
    ]

    def handler(method: str, data: bytes) -> bytes:
        one = answers.pop(0)
        if isinstance(one, Refuse):
            raise one
        return one

    with RpcServer(handler, TOKEN) as server, rpc(server.address) as client:
        with pytest.raises(NotRegistered, match=r"allocate: not you \(ApplicationMasterNotRegisteredException\)$"):
            allocate(client)
        assert allocate(client) == 7
        assert server.connections == 1


def test_a_retriable_error_is_retried() -> None:
    messages = []

    def handler(method: str, data: bytes) -> bytes:
        messages.append(method)
        if len(messages) < 3:
            raise Refuse("org.apache.hadoop.ipc.RetriableException", "starting")
        return ANSWER

    with RpcServer(handler, TOKEN) as server, rpc(server.address) as client:
        assert allocate(client) == 7
    assert len(messages) == 3


def test_the_serving_one_of_several_servers_is_found_and_kept() -> None:
    with (
        refusing() as closed,
        RpcServer(lambda method, data: ANSWER, TOKEN) as server,
        rpc(closed, server.address) as client,
    ):
        assert [allocate(client), allocate(client)] == [7, 7]
        assert server.connections == 1


def test_unreachable_servers_give_one_line_with_every_address() -> None:
    words = r"no server answered allocate in 120 s: 127.0.0.1:\d+: refused"
    with refusing() as one, refusing() as two, pytest.raises(ConnectionLost, match=words) as caught:
        allocate(rpc_that_tries_twice(one, two))
    assert not caught.value.sent
    assert all(f":{port}: refused" in str(caught.value) for _, port in (one, two))


def test_a_silent_server_uses_up_the_timeout_only() -> None:
    with answering(hold=True) as address, rpc(address, try_s=0.1) as client:
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="timed out"):
            allocate(client, QUICK_S)
        assert time.monotonic() - began < 20


def test_an_answer_is_waited_for_longer_than_a_connection() -> None:
    def late(method: str, data: bytes) -> bytes:
        time.sleep(0.5)
        return ANSWER

    with RpcServer(late, TOKEN) as server, rpc(server.address, try_s=0.2) as client:
        answer = client.call("register", b"", response_id, timeout_s=120, answer_s=120)
        assert (answer, server.calls) == (7, 1)


def test_a_dripping_server_times_out_like_a_silent_one() -> None:
    with RpcServer(lambda method, data: ANSWER, TOKEN) as server, Proxy(server.address) as proxy:
        proxy.plan = Plan(delay_s=0.4)
        began = time.monotonic()
        with rpc(proxy.address, try_s=0.2) as client, pytest.raises(ConnectionLost, match="timed out"):
            allocate(client, QUICK_S)
        assert time.monotonic() - began < 20


def test_an_endless_answer_times_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_RECEIVE", 1)
    monkeypatch.setattr(connection, "MAX_HANDSHAKE_FRAME", 128 << 20)
    size = 64 << 20
    with answering(size.to_bytes(4, "big"), bytes(size)) as address, rpc(address, try_s=0.2) as client:
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="timed out"):
            allocate(client, QUICK_S)
        assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "answers HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "answers TLS"),
        (b"\x00\x00\x00\x02\x05\x00", "message of 5 bytes"),
        (b"\x00\x00\x00\x03\x02\x08\x01", "cannot be read: a message lacks field 2"),
        (b"\xff" * 100, "before 9"),
    ],
)
def test_another_kind_of_server_is_called_by_its_name(data: bytes, words: str) -> None:
    with answering(data) as address, rpc_that_tries_twice(address) as client, pytest.raises(Unreachable, match=words):
        allocate(client)


def test_an_answer_to_something_else_is_not_taken() -> None:
    header = b"\x08\xff\xff\x03\x10\x00"  # callId 65535, SUCCESS
    answer = b"\x00\x00\x00\x08\x06" + header + b"\x00"
    with (
        answering(answer) as address,
        rpc_that_tries_twice(address, token=None) as client,
        pytest.raises(NotHadoop, match="does not belong to the call"),
    ):
        allocate(client)


def test_a_connection_that_the_server_closed_is_opened_again() -> None:
    with RpcServer(lambda method, data: ANSWER, TOKEN) as server, Proxy(server.address) as proxy:
        with rpc(proxy.address) as client:
            assert allocate(client) == 7
            proxy.cut_all()
            assert allocate(client) == 7
        assert server.connections == 2


@pytest.mark.parametrize("kind", ["cut_down", "cut_up", "garble_down", "hold_down"])
@pytest.mark.parametrize("qop", ["auth", "auth-int"])
def test_a_stream_harmed_at_any_byte_ends_in_one_error_and_the_next_call_is_right(kind: str, qop: str) -> None:
    with RpcServer(lambda method, data: ANSWER, TOKEN, qop) as server, Proxy(server.address) as proxy:
        for offset in range(0, 500, 23):
            harm: dict[str, Any] = {kind: offset}
            proxy.plan = Plan(**harm)
            # Past the answer it does no harm; where it does, there is one error of ours and no other.
            with rpc(proxy.address, try_s=0.05) as client, suppress(HadoopError):
                assert allocate(client, 0.01) == 7 or kind == "garble_down"
            proxy.plan = Plan()
            with rpc(proxy.address) as client:
                assert allocate(client) == 7


def test_whether_the_server_may_have_got_the_call_is_known() -> None:
    with RpcServer(lambda method, data: ANSWER, TOKEN) as server, Proxy(server.address) as proxy:
        for plan, sent in ((Plan(refuse=True), False), (Plan(cut_call=1), False), (Plan(cut_call=2), True)):
            proxy.plan = plan
            with pytest.raises(ConnectionLost) as caught:
                allocate(rpc_that_tries_twice(proxy.address), 30.0)
            assert caught.value.sent is sent, plan


def test_a_connection_can_be_closed_twice_and_is_marked_broken_after_an_error() -> None:
    with RpcServer(lambda method, data: ANSWER, TOKEN) as server:
        one = Connection(server.address, "P", proof=TOKEN, deadline=time.monotonic() + 120)
        one.close()
        one.close()
        with pytest.raises((ConnectionLost, RemoteError)):
            one.call("allocate", b"", time.monotonic() + 1)
