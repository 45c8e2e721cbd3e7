"""HDFS natively, with scripted NameNodes: how far behind an observer is, or when one has started, no test can say."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dlapp.hadoop.hdfs.client_protocol import ACTIVE, OBSERVER
from dlapp.hadoop.wire import encode
from dlapp.locations import NATIVE, HdfsPlace
from dlapp.login import Login
from dlapp.storage.hdfs import native
from dlapp.storage.hdfs.native import _OBSERVERS_HOLD_S, NativeHdfs
from tests.hadoop.rpc_server import Refuse, RpcServer
from tests.storage.hdfs.test_webhdfs import NAMENODE, ROUTER, Servers, bean

IPC = "org.apache.hadoop.ipc"


class NameNode:
    """A NameNode whose root directory has one entry, with its name.

    Args:
        name: of it.
        state: `ACTIVE` or `OBSERVER`.
        transaction: the last one that it has; None: it does not say (``dfs.namenode.state.context.enabled``).
    """

    def __init__(self, name: str, state: int, transaction: int | None) -> None:
        self.name, self.state, self.transaction = name, state, transaction
        self.server = RpcServer(self._answer, state_id=lambda: self.transaction)
        self.refuses: Exception | None = None
        self.heard: list[tuple[str, int | None]] = []

    def _answer(self, method: str, _request: bytes) -> bytes:
        if method == "getHAServiceState":
            return encode((1, self.state))
        self.heard.append((method, self.server.heard_state))
        if method == "getServerDefaults":
            return encode((1, encode((1, 1 << 20), (2, 512), (3, 1 << 16), (4, 1), (5, 4096), (8, 2))))
        if method == "msync" and self.state == ACTIVE:
            return b""
        if method == "getListing" and self.refuses is None:
            owner = (5, "tony"), (6, "users"), (7, 0), (8, 0)
            status = encode((1, 1), (2, self.name), (3, 0), (4, encode((1, 0o755))), *owner, (13, 16386))
            return encode((1, encode((1, status), (2, 0))))
        raise self.refuses or Refuse(f"{IPC}.StandbyException", method)

    def took(self) -> list[tuple[str, int | None]]:
        """Return the calls since the last look, with the transaction that the caller asks for."""
        found, self.heard = self.heard, []
        return found


class Pair:
    """An active NameNode, an observer, and a client of both whose clock stands still."""

    def __init__(self, active: NameNode, observer: NameNode) -> None:
        self.active, self.observer = active, observer
        self.now_s = 1_000.0
        names = tuple(f"127.0.0.1:{one.server.address[1]}" for one in (observer, active))
        place = HdfsPlace("hdfs://ns", ("http://nn:9870",), Login("tony"), names=names, protocol=NATIVE)
        self.web = NativeHdfs(place, clock=lambda: self.now_s)

    def listed(self) -> str:
        """Return who answers a listing."""
        return self.web.children("/")[0].name


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(NativeHdfs, "has_inode_paths", lambda _web: True)
    monkeypatch.setattr(native, "_OBSERVER_S", 120.0)  # an observer on a busy machine is not behind
    active, observer = NameNode("active", ACTIVE, 500), NameNode("observer", OBSERVER, 500)
    with ExitStack() as stack:
        stack.enter_context(active.server)
        stack.enter_context(observer.server)
        found = Pair(active, observer)
        stack.callback(found.web.close)
        assert found.web.webhdfs_reason() == ""
        assert active.took() == [("getServerDefaults", None)]
        yield found


def test_an_observer_lists_what_the_active_namenode_had_when_it_was_asked(pair: Pair) -> None:
    pair.active.transaction = pair.observer.transaction = 700
    assert pair.listed() == "observer"
    assert pair.active.took() == [("msync", None)]
    assert pair.observer.took() == [("getListing", 700)]


def test_without_transactions_in_the_answers_no_observer_is_read(pair: Pair) -> None:
    pair.web._state_id = pair.active.transaction = None
    assert pair.listed() == "active"
    assert pair.observer.took() == []


def test_an_observer_that_is_behind_is_left_alone_for_a_while(pair: Pair) -> None:
    pair.observer.refuses = Refuse(f"{IPC}.RetriableException", "Observer Node is too far behind")
    assert [pair.listed(), pair.listed()] == ["active", "active"]
    assert pair.observer.took() == [("getListing", 500)]
    pair.observer.refuses = None
    pair.now_s += _OBSERVERS_HOLD_S + 1
    assert pair.listed() == "observer"


def test_an_observer_that_does_not_wait_for_a_transaction_is_not_believed(pair: Pair) -> None:
    pair.active.transaction = 700
    assert pair.listed() == "active"
    assert pair.observer.took() == [("getListing", 700)]


def test_what_an_observer_does_not_know_the_active_namenode_is_asked_for(pair: Pair) -> None:
    pair.observer.refuses = Refuse(f"{IPC}.ObserverRetryOnActiveException", "Zero blocklocations")
    assert [pair.listed(), pair.listed()] == ["active", "active"]
    assert len(pair.observer.took()) == 2


def test_an_observer_that_is_gone_is_done_without(pair: Pair) -> None:
    assert pair.listed() == "observer"
    pair.observer.refuses = EOFError()  # it cuts the connection
    assert pair.listed() == "active"


def test_one_that_became_active_is_called_as_such(pair: Pair) -> None:
    assert pair.listed() == "observer"
    pair.active.state, pair.observer.state = OBSERVER, ACTIVE
    pair.now_s += _OBSERVERS_HOLD_S + 1
    assert pair.listed() == "active"
    assert pair.observer.took()[-1] == ("msync", None)


def test_a_namenode_that_is_starting_is_not_taken_for_a_gateway(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    place = pair.web.place._replace(web=("http://starting:1", "http://nn:1"))
    web = NativeHdfs(place)
    answers = {"starting:1": b'{"beans": []}', "nn:1": bean(NAMENODE)}
    web._connections = Servers(lambda name, _what: answers[name])  # type: ignore[assignment]
    assert web.webhdfs_reason() == ""
    answers["nn:1"] = bean(ROUTER)
    web = NativeHdfs(place)
    web._connections = Servers(lambda name, _what: answers[name])  # type: ignore[assignment]
    assert web.webhdfs_reason() == "it is a Router or a gateway, and no NameNode"


def test_a_client_that_nobody_uses_is_gone_also_after_a_refusal(pair: Pair) -> None:
    pair.active.refuses = pair.observer.refuses = Refuse("java.io.FileNotFoundException", "there is no such number")
    web = NativeHdfs(pair.web.place)
    assert web.status("/.reserved/.inodes/17") is None
    client = weakref.ref(web)
    gc.disable()  # it would find a cycle, and end what is in it in any order: connections that are still open
    try:
        web.close()
        del web
        assert client() is None
    finally:
        gc.enable()
