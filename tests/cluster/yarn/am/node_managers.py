"""NodeManagers of many nodes in one process: they take what they are given, and run nothing."""

from __future__ import annotations

import socket
import threading

from dlapp.cluster.yarn.am.node_calls import StartOrder
from dlapp.cluster.yarn.values import Granted, Launch, NodeId
from dlapp.hadoop.tokens import Token
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.spec import Resources
from tests.cluster.yarn import server_messages

TOKEN = Token(b"identifier", b"password", "NMToken")
APPLICATION = ApplicationId(1_700_000_000_000, 42)


def id_of(number: int) -> ContainerId:
    """Return the id of a container."""
    return ContainerId(APPLICATION, 1, number)


def start_of(container_id: ContainerId, node: NodeId) -> StartOrder:
    """Return an order to start a container; its token names it."""
    granted = Granted(
        container_id=container_id,
        node=node,
        web="",
        resources=Resources(memory_mib=256),
        priority=1,
        request_id=1,
        token=server_messages.token_of(container_id),
    )
    return StartOrder(granted, Launch(command=("true",)))


def take_all(method: str, request: bytes) -> bytes:
    """Answer as a NodeManager that takes every container and ends every one."""
    if method == "stopContainers":
        return server_messages.stopped(server_messages.parse_containers(request))
    return server_messages.started(
        ContainerId.from_text(start.identifier.decode()) for start in server_messages.parse_starts(request)
    )


class SilentNode:
    """A node that takes connections and says nothing; `calls` is how often it was called.

    With ``full`` its connections are not even accepted, as of a host that is off: the first packet gets no answer.
    """

    def __init__(self, *, full: bool = False) -> None:
        self.calls = 0
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=0 if full else 128)
        self.node = NodeId(*self._listening.getsockname())
        self._links: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)
        if full:
            # The kernel keeps one more than the backlog, and passes over those after it.
            for _ in range(2):
                link = socket.socket()
                link.setblocking(False)
                link.connect_ex(self.node)
                self._links.append(link)
        else:
            self._thread.start()

    def __enter__(self) -> SilentNode:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._listening.shutdown(socket.SHUT_RDWR)
            self._thread.join()
        for item in (self._listening, *self._links):
            item.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError:
                return
            self.calls += 1
            self._links.append(link)
