"""A proxy between a client and a real server, that does to the bytes what a test asks for.

``with Proxy(("127.0.0.1", 8030)) as proxy`` listens on ``proxy.address`` and passes everything on. What is spoiled is
told by a `Plan`, for each direction and counted from the connection's first byte; a plan holds for connections that are
opened after it was set.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Harm to one connection.

    Args:
        refuse: close it at once.
        cut_up, cut_down: reset it once so many bytes have passed to the server, to the client.
        cut_call: reset it when the answer to its n-th call (0: the first) begins to come back. A call is a pause
            between bytes from the client and bytes from the server; the handshake counts too.
        garble_down: at this byte to the client on, other bytes.
        hold_down: at this byte to the client on, nothing more, and the connection stays open.
        delay_s: pause before each piece to the client.
    """

    refuse: bool = False
    cut_up: int | None = None
    cut_down: int | None = None
    cut_call: int | None = None
    garble_down: int | None = None
    hold_down: int | None = None
    delay_s: float = 0.0


class Proxy:
    """See the module's text. ``connections`` counts those that were opened."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.plan = Plan()
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listening.getsockname()
        self._open: set[socket.socket] = set()
        self._closing = False
        self._threads = [threading.Thread(target=self._accept, name="proxy-accept")]
        self._lock = threading.Lock()
        self._threads[0].start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._listening.close()
        # Closing alone does not wake a thread that is inside accept.
        with suppress(OSError):
            socket.create_connection(self.address, timeout=0.1).close()
        self.cut_all()
        for thread in self._threads:
            thread.join()

    def cut_all(self) -> None:
        """Reset every connection that is open."""
        with self._lock:
            for item in self._open:
                _reset(item)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            plan = self.plan
            self.connections += 1
            try:
                if plan.refuse:
                    raise ConnectionRefusedError
                server = socket.create_connection(self.target, timeout=120)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
                if self._closing:  # it was accepted last
                    _reset(client)
            pair = _Pair(client, server, plan)
            for pump in (pair.up, pair.down):
                thread = threading.Thread(target=self._pump, args=(pump, pair), name="proxy-pump")
                self._threads.append(thread)
                thread.start()

    def _pump(self, pump: object, pair: _Pair) -> None:
        with suppress(OSError):
            pump()  # type: ignore[operator]
        _reset(pair.client)
        _reset(pair.server)
        if pair.last_one_out():
            with self._lock:
                self._open -= {pair.client, pair.server}
            pair.client.close()
            pair.server.close()


class _Pair:
    def __init__(self, client: socket.socket, server: socket.socket, plan: Plan) -> None:
        self.client, self.server, self.plan = client, server, plan
        self.calls = -1
        self._asking = False
        self._ended = 0
        self._lock = threading.Lock()

    def last_one_out(self) -> bool:
        with self._lock:
            self._ended += 1
            return self._ended == 2

    def up(self) -> None:
        passed = 0
        while data := self.client.recv(1 << 16):
            if not self._asking:
                self._asking = True
                self.calls += 1
            if self.plan.cut_up is not None and passed + len(data) > self.plan.cut_up:
                self.server.sendall(data[: self.plan.cut_up - passed])
                return
            self.server.sendall(data)
            passed += len(data)

    def down(self) -> None:
        passed, plan = 0, self.plan
        while data := self.server.recv(1 << 16):
            self._asking = False
            if plan.cut_call is not None and self.calls >= plan.cut_call:
                return
            time.sleep(plan.delay_s)
            end = passed + len(data)
            if plan.garble_down is not None and end > plan.garble_down:
                keep = max(0, plan.garble_down - passed)
                data = data[:keep] + bytes(byte ^ 0x5A for byte in data[keep:])
            for limit, holds in ((plan.cut_down, False), (plan.hold_down, True)):
                if limit is not None and end > limit:
                    self.client.sendall(data[: limit - passed])
                    while holds and self.server.recv(1 << 16):
                        pass
                    return
            self.client.sendall(data)
            passed = end


def _reset(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
