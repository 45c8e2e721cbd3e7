"""HDFS natively, with scripted NameNodes: how far behind an observer is, or when one has started, no test can say."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dlapp.hadoop.hdfs.client_protocol import ACTIVE, OBSERVER
from dlapp.hadoop.wire import encode
from dlapp.locations import AUTO, NATIVE, HdfsPlace
from dlapp.login import Login
from dlapp.storage.hdfs import native
from dlapp.storage.hdfs.native import _OBSERVERS_HOLD_S, NativeHdfs
from tests.hadoop.rpc_server import Refuse, RpcServer

IPC = "org.apache.hadoop.ipc"
STANDBY = 2


class NameNode:
    """A NameNode whose root directory has one entry, with its name.

    Args:
        name: of it.
        state: `ACTIVE`, `OBSERVER` or another one; None: it does not know the call, as before 3.1.
        transaction: the last one that it has; None: it does not say (``dfs.namenode.state.context.enabled``).
    """

    def __init__(self, name: str, state: int | None, transaction: int | None) -> None:
        self.name, self.state, self.transaction = name, state, transaction
        self.in_safe_mode, self.is_router, self.is_alone = False, False, False
        self.server = RpcServer(self._answer, state_id=lambda: self.transaction)
        self.refuses: Exception | None = None
        self.heard: list[tuple[str, int | None]] = []

    def _answer(self, method: str, _request: bytes) -> bytes:
        if method == "getHAServiceState" and self.is_alone:
            raise Refuse("org.apache.hadoop.ha.ServiceFailedException", "HA for namenode is not enabled")
        if method == "getHAServiceState" and self.state is not None:
            return encode((1, self.state))
        if method == "getProtocolSignature":
            return b"" if self.is_router else encode((1, encode((1, 1))))
        self.heard.append((method, self.server.heard_state))
        if method == "getServerDefaults":
            return encode((1, encode((1, 1 << 20), (2, 512), (3, 1 << 16), (4, 1), (5, 4096), (8, 2))))
        if method == "setSafeMode":
            return encode((1, self.in_safe_mode))
        if self.state is None:
            raise Refuse(f"{IPC}.RpcNoSuchMethodException", method)
        if method == "checkAccess" and self.refuses is None:
            return b""
        if method == "getFileInfo" and self.refuses is None:
            return b""
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
        names = tuple(f"127.0.0.1:{item.server.address[1]}" for item in (observer, active))
        place = HdfsPlace("hdfs://ns", ("http://127.0.0.1:1",), Login("tony"), names=names, protocol=NATIVE)
        self.web = NativeHdfs(place, clock=lambda: self.now_s)

    def listed(self) -> str:
        """Return who answers a listing."""
        return self.web.children("/")[0].name


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
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


def test_an_observer_lists_the_active_namenodes_state_at_the_request(pair: Pair) -> None:
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


def test_requests_unknown_to_an_observer_go_to_the_active_namenode(pair: Pair) -> None:
    pair.observer.refuses = Refuse(f"{IPC}.ObserverRetryOnActiveException", "Zero blocklocations")
    assert [pair.listed(), pair.listed()] == ["active", "active"]
    assert len(pair.observer.took()) == 2


def test_a_lost_observer_is_skipped(pair: Pair) -> None:
    assert pair.listed() == "observer"
    pair.observer.refuses = EOFError()  # it cuts the connection
    assert pair.listed() == "active"


def test_a_namenode_that_became_active_is_used_as_active(pair: Pair) -> None:
    assert pair.listed() == "observer"
    pair.active.state, pair.observer.state = OBSERVER, ACTIVE
    pair.now_s += _OBSERVERS_HOLD_S + 1
    assert pair.listed() == "active"
    assert pair.observer.took()[-1] == ("msync", None)


def test_a_router_is_distinguished_from_a_namenode_without_a_web_port(pair: Pair) -> None:
    assert pair.web.has_inode_paths()
    assert pair.web.mounts() == {}
    pair.active.is_router = pair.observer.is_router = True
    for protocol in (NATIVE, AUTO):
        web = NativeHdfs(pair.web.place._replace(protocol=protocol, location=f"hdfs://{protocol}"))
        assert web.webhdfs_reason() == "it is a Router, and no NameNode"
        web.close()


def test_only_an_active_namenode_out_of_safe_mode_proves_a_removal(pair: Pair) -> None:
    assert pair.web.lacks("/user/app") is True
    assert [method for method, _ in pair.active.took()] == ["setSafeMode", "getFileInfo", "checkAccess"]
    assert [method for method, _ in pair.observer.took()] == []
    pair.active.in_safe_mode = True
    assert pair.web.lacks("/user/app") is None
    pair.active.in_safe_mode, pair.active.state = False, STANDBY
    assert pair.web.lacks("/user/app") is None
    pair.observer.state = ACTIVE
    assert pair.web.lacks("/user/app") is True


def test_a_single_namenodes_state_is_checked_before_it_proves_a_removal(pair: Pair) -> None:
    place = pair.web.place._replace(names=(f"127.0.0.1:{pair.active.server.address[1]}",))
    web = NativeHdfs(place)
    for state, found in ((ACTIVE, True), (STANDBY, None), (OBSERVER, None)):
        pair.active.state = state
        assert web.lacks("/user/app") is found
    pair.active.is_alone = True  # so it has no state
    assert web.lacks("/user/app") is True
    pair.active.in_safe_mode = True
    assert web.lacks("/user/app") is None
    # Before 3.1 there is no such call, and its web port is asked, which is closed here: nothing is known.
    pair.active.is_alone, pair.active.in_safe_mode, pair.active.state = False, False, None
    assert web.lacks("/user/app") is None
    web.close()


def test_an_unused_client_is_freed_also_after_a_refusal(pair: Pair) -> None:
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
