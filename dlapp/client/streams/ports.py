"""Forwarding of a container's TCP port to this machine: `PortForward`, used by dlapp-port.

Each connection to the local port becomes a connection to the container's port: directly, if the container's host is
reachable on it, else by a stream through the ApplicationMaster.

1. The task reports which addresses of the host are the payload's (`dlapp.values.messages.PortPlace`), since other users
   have ports on that host, too.
2. The client connects directly.
3. It queries the task again before it passes a byte: the payload may have ended meanwhile, and another user may have
   its port.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dlapp.client.streams.local_port import LocalPort
from dlapp.errors import DlappError, NotFound, TimedOut, Unreachable
from dlapp.net.relay import copy_both, reset
from dlapp.net.streams import NOT_OPEN, NOT_RUNNING, StreamRefused
from dlapp.system.machine import boot_id
from dlapp.value import Closeable
from dlapp.values.access import STREAM_PORT
from dlapp.values.messages import PortPlace
from dlapp.values.serialization import from_json

if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.client.streams.opening import StreamOpener
    from dlapp.values.ids import ApplicationId
    from dlapp.values.report import ApplicationView, ContainerView

POLL_INTERVAL_S, LARGE_POLL_INTERVAL_S, LARGE_APPLICATION = 1.0, 10.0, 100
"""Intervals between two polls of an application, for small and large ones; LARGE_APPLICATION is the number of
containers from which the view is large."""
DIRECT_TIMEOUT_S = 1.5
"""Time limit for a direct connection."""
PLACE_TIMEOUT_S = 10.0
"""Time limit for the task to report the address of its port."""
DIRECT_RETRY_S = 60.0
"""How long an unreachable host is not tried again."""
_REPEAT_S = 10.0
_MAX_PLACE_BYTES = 64 << 10


class PortForward(Closeable):
    """Forwarder of a container's port to a local port, until it is closed.

    Connections are served by its own threads. `poll`, or `run`, is called in the client's thread: it detects a
    restarted container, and the end of the application.

    Args:
        client: reads the application's state.
        application_id: the caller's own, or one whose `view_acl` contains the caller. For another user's application
            all connections are streams: addresses that its tasks report are not trusted.
        index: CONTAINER_INDEX.
        port: the port of the container.
        local: the local port; None for the same number if the program already listens on it and it is available; else
            another one.
        say: called with lines for the user, by any thread.
        direct: connect directly if possible.

    Raises:
        NotFound: there is no such application, or it has ended.
        Denied: it is owned by another user, or was submitted from another machine.
        UsageError: the local port cannot be used.
    """

    def __init__(
        self,
        client: Client,
        application_id: ApplicationId,
        index: int,
        port: int,
        local: int | None = None,
        *,
        say: Callable[[str], None] = lambda _: None,
        direct: bool = True,
    ) -> None:
        self._client, self._application_id, self._index, self._port = client, application_id, index, port
        self._show = say
        self._lock = threading.Lock()
        self._shown_at: dict[str, float] = {}
        self._name = f"container {index}"
        self._container: tuple[str, int] | None = None
        self._poll_interval_s = POLL_INTERVAL_S
        self._place: PortPlace | None = None
        self._no_direct_until = 0.0
        self._direct = direct
        self.route = ""
        """Route of the last connection: ``directly at HOST``, or ``through the ApplicationMaster``."""
        self._opener: StreamOpener | None = None
        if over := self.poll():
            raise NotFound(over)
        # A program on this machine that does not listen yet would find its own port taken.
        self._local = LocalPort(local, port if self.is_open else 0, self._serve, self._show_once)
        self.local_port = self._local.port

    @property
    def is_open(self) -> bool:
        """Return True if the program was seen listening on the port."""
        return self._place is not None

    @property
    def url(self) -> str:
        """Return the URL of the local port, for an HTTP server."""
        return f"http://127.0.0.1:{self.local_port}"

    def close(self) -> None:
        """Close the local port and all connections. Idempotent."""
        self._local.close()

    # ---- for the client's thread ----

    def run(self) -> str:
        """Serve until the application has ended; return a line about that."""
        while not (over := self.poll()):
            time.sleep(self._poll_interval_s)
        return over

    def wait_open(self, timeout_s: float) -> None:
        """Wait until the program listens on the port.

        Raises:
            NotFound: the application ended.
            TimedOut: it does not listen by then.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if over := self.poll():
                raise NotFound(over)
            if self.is_open:
                return
            if time.monotonic() >= deadline:
                raise TimedOut(f"{self._name} did not listen on port {self._port} within {timeout_s:g} s")
            time.sleep(min(self._poll_interval_s, max(0.0, deadline - time.monotonic())))

    def poll(self) -> str:
        """Read the application's state once; return a line if it has ended, else an empty text."""
        try:
            view = self._client.status(self._application_id)
        except Unreachable as error:
            self._show_once(str(error))
            return ""
        if view.state.ended:
            return end_of(view)
        self._poll_interval_s = POLL_INTERVAL_S if view.total_containers <= LARGE_APPLICATION else LARGE_POLL_INTERVAL_S
        for container in view.containers:
            if container.index == self._index:
                self._set_container(container)
        try:
            self._find_opener()
            if not self.is_open:
                self._query_place()
        except (StreamRefused, Unreachable) as error:
            self._show_once(str(error))
        except NotFound:
            pass  # it has just ended; the next call reports that
        return ""

    def _find_opener(self) -> None:
        """Update the address of the ApplicationMaster; a later attempt has another."""
        opener: StreamOpener | None = None
        with contextlib.suppress(StreamRefused):  # it waits, and another process may have the old address
            opener = self._client.stream_opener(self._application_id)
        with self._lock:
            if self._opener is None or opener is None or self._opener.url != opener.url:
                self._opener = opener

    def _set_container(self, container: ContainerView) -> None:
        """Record the current container of the index."""
        self._name = f"{container.role}:{container.role_index}"
        latest = str(container.container_id), container.generation
        is_another = self._container not in (None, latest)
        if is_another:
            self._show_once(f"{self._name} is started again, on {container.host}")
        elif container.finished_ms is not None and self.is_open:
            self._show_once(f"{self._name} has ended")
        if is_another or container.finished_ms is not None:
            with self._lock:
                self._place, self._no_direct_until = None, 0.0
                if is_another:
                    self._shown_at.clear()
        self._container = latest

    def _show_once(self, text: str) -> None:
        """Show a line to the user, without repeating the same line."""
        now = time.monotonic()
        with self._lock:
            self._shown_at = {one: at for one, at in self._shown_at.items() if now - at < _REPEAT_S}
            if text in self._shown_at:
                self._shown_at[text] = now
                return
            self._shown_at[text] = now
        self._show(text)

    # ---- for the connections' threads ----

    def _serve(self, connection: socket.socket) -> None:
        try:
            remote = self._connect()
        except DlappError as error:
            self._show_once(f"no connection to port {self._port} of {self._name}: {error}")
            reset(connection)
            return
        copy_both(connection, remote)

    def _connect(self) -> socket.socket:
        """Return a connection to the port of the container. Raises DlappError: there is none."""
        is_own = self._opener is not None and self._opener.is_own
        if self._direct and is_own and time.monotonic() >= self._no_direct_until:
            for address in addresses_of(self._place or self._query_place()):
                try:
                    found = socket.create_connection((address, self._port), timeout=DIRECT_TIMEOUT_S)
                except OSError:
                    continue
                if self._is_still_payload(found, address):
                    self._set_route(f"directly at {address}")
                    return found
            with self._lock:
                self._no_direct_until = time.monotonic() + DIRECT_RETRY_S
        found = self._stream({"port": self._port})
        self._set_route("through the ApplicationMaster")
        return found

    def _is_still_payload(self, connection: socket.socket, address: str) -> bool:
        """Return whether the connected address is the payload's port; else close the connection. Raises DlappError:
        that cannot be determined, or the port is not open."""
        is_payload = False
        try:
            is_payload = address in addresses_of(self._query_place())
        finally:
            if not is_payload:
                connection.close()
        return is_payload

    def _set_route(self, route: str) -> None:
        with self._lock:
            is_new, self.route = route != self.route, route
        if is_new:
            self._show_once(f"connections to port {self._port} of {self._name} go {route}")

    def _stream(self, head: dict[str, object]) -> socket.socket:
        if (opener := self._opener) is None:
            raise StreamRefused(f"{self._application_id} has not started yet", NOT_RUNNING)
        try:
            return opener(self._index, STREAM_PORT, head)
        except StreamRefused as error:
            if error.reason in (NOT_OPEN, NOT_RUNNING):
                with self._lock:
                    self._place = None
            raise

    def _query_place(self) -> PortPlace:
        """Return where the port is, as reported by the task. Raises DlappError: that cannot be determined, or it is not
        open.
        """
        with self._stream({"port": self._port, "look": True}) as stream:
            place = _receive_place(stream)
        with self._lock:
            is_new, self._place = self._place is None, place
        if is_new:
            self._show_once(f"{self._name} listens on port {self._port}")
        return place


def _receive_place(stream: socket.socket) -> PortPlace:
    stream.settimeout(PLACE_TIMEOUT_S)
    data = b""
    try:
        while len(data) < _MAX_PLACE_BYTES and (more := stream.recv(_MAX_PLACE_BYTES)):
            data += more
        return from_json(PortPlace, json.loads(data))
    except (OSError, ValueError, RecursionError) as error:
        raise Unreachable(f"the container did not say where its port is: {error}") from error


def addresses_of(place: PortPlace) -> tuple[str, ...]:
    """Return the addresses at which this process may reach a port without a stream, the nearest first."""
    is_same_machine = (
        place.boot != "" and place.boot == boot_id() and place.network == os.stat("/proc/self/ns/net").st_ino
    )
    return (*((place.loopback,) if is_same_machine and place.loopback else ()), *place.hosts)


def end_of(view: ApplicationView) -> str:
    """Return a line on an application that has ended and has no ports any more."""
    how = ", ".join(filter(None, (view.final_status.value.lower(), view.diagnostics)))
    return f"{view.application_id} has ended ({how}): it has no ports any more"
