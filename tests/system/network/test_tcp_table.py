"""TCP sockets and their owners, of recorded tables and of the kernel's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from dlapp.system.network import tcp_table
from dlapp.system.network.tcp_table import TcpSocket, listeners, sockets, uid_of_peer

# Of Linux 6.1 on x86-64.
_TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 31337 1 0000 100 0 0 10 0
   1: 0A01A8C0:0016 0B01A8C0:D431 01 00000000:00000000 02:000A7214 00000000     0        0 2001 3 0000 20 4 30 10 -1
   2: 0100007F:1F90 0100007F:C350 06 00000000:00000000 03:00001387 00000000     0        0 0 3 0000
not a line of a table
"""
_ANY, _REST = "0" * 32, "00000000:00000000 00:00000000 00000000"
_TCP6 = f"""\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when r
   0: {_ANY}:1F90 {_ANY}:0000 0A {_REST}  1002        0 41 1 0
   1: 0000000000000000FFFF00000100007F:C350 0000000000000000FFFF00000100007F:1F90 01 {_REST}  1003        0 42 1 0
   2: 00000000000000000000000001000000:1F91 {_ANY}:0000 0A {_REST}  1004        0 43 1 0
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="recorded on such a machine")
def test_a_table_is_read_with_addresses_as_people_write_them(tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text(_TCP)
    (tmp_path / "tcp6").write_text(_TCP6)
    found = list(sockets(str(tmp_path)))
    assert found[0] == TcpSocket("127.0.0.1", 8080, "0.0.0.0", 0, True, 1001, 31337)
    assert found[1][:4] == ("192.168.1.10", 22, "192.168.1.11", 54321)
    assert found[4] == TcpSocket("127.0.0.1", 50000, "127.0.0.1", 8080, False, 1003, 42)
    assert [(listener.address, listener.uid) for listener in listeners(8080, str(tmp_path))] == [
        ("127.0.0.1", 1001),
        ("::", 1002),
    ]
    assert [listener.address for listener in listeners(8081, str(tmp_path))] == ["::1"]
    assert list(sockets(str(tmp_path / "nothing"))) == []


@pytest.fixture(params=["netlink", "proc"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the kernel asked by netlink, where it can be, or by /proc."""
    if request.param == "proc":
        monkeypatch.setattr(tcp_table, "_query_netlink", lambda *_: None)
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_tcp_table_has_listeners_and_peers(family: socket.AddressFamily, address: str) -> None:
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        assert [(listener.address, listener.uid) for listener in listeners(port)] == [(address, os.getuid())]
        with socket.create_connection((address, port)) as client:
            accepted, _ = server.accept()
            with accepted:
                assert uid_of_peer(accepted) == os.getuid()
                assert uid_of_peer(client) == os.getuid()
                client.close()
                assert uid_of_peer(accepted) is None, "what its process has closed is nobody's"


@pytest.mark.usefixtures("way")
def test_a_client_of_both_protocols_is_known_on_a_connection_of_ipv4() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as client,
    ):
        client.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        accepted, _ = server.accept()
        with accepted:
            assert uid_of_peer(accepted) == os.getuid()


@pytest.mark.root("the client is another user")
@pytest.mark.usefixtures("way")
def test_the_user_of_another_process_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.recv(1)"
        become = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
        client = subprocess.Popen([*become, "/usr/bin/python3", "-c", code, str(server.getsockname()[1])])
        accepted, _ = server.accept()
        with accepted:
            assert uid_of_peer(accepted) == 12345
        assert client.wait(120) == 0


def test_an_unset_peer_uid_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        ours, theirs = client.getsockname(), client.getpeername()
        answers = [TcpSocket(theirs[0], theirs[1], ours[0], ours[1], False, uid, 8) for uid in (0, 1001, 65534, 1002)]
        monkeypatch.setattr(tcp_table, "_query_netlink", lambda *_: [answers.pop(0)])
        assert uid_of_peer(client) == 1001
        assert uid_of_peer(client) == 1002


def test_a_listener_on_the_peers_port_is_not_the_peer() -> None:
    # Of a connection that is gone, the kernel would name a socket that listens on its port.
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        assert uid_of_peer(cast(socket.socket, Gone(other.getsockname(), server.getsockname()))) is None


class Gone:
    """A connection whose other end is a port that somebody listens on."""

    def __init__(self, peer: tuple[str, int], own: tuple[str, int]) -> None:
        self._peer, self._own = peer, own

    def getpeername(self) -> tuple[str, int]:
        return self._peer

    def getsockname(self) -> tuple[str, int]:
        return self._own
