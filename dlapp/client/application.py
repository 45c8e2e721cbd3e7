"""An application that a program submitted or monitors: its id and operations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from dlapp.errors import DlappError, NotFound, TimedOut, UsageError
from dlapp.locations import FILE, local_path
from dlapp.values.ids import ApplicationId

if TYPE_CHECKING:
    from dlapp.client.logs import LogPiece
    from dlapp.values.report import ApplicationView
    from dlapp.values.usage import UsageHistory


class ApplicationCalls(Protocol):
    """The calls of `dlapp.client.Client` for one application."""

    def status(self, application_id: ApplicationId) -> ApplicationView: ...

    def usage(self, application_id: ApplicationId) -> UsageHistory: ...

    def why(self, application_id: ApplicationId) -> ApplicationView: ...

    def wait(
        self,
        application_id: ApplicationId,
        on_change: Callable[[ApplicationView], None],
        *,
        timeout_s: float | None,
    ) -> ApplicationView: ...

    def logs(
        self,
        application_id: ApplicationId,
        *,
        container: int | None,
        streams: Sequence[str],
        last_lines: int | None,
    ) -> Iterator[LogPiece]:
        """Yield the output of the payloads.

        Args:
            application_id: id of the application.
            container, streams, last_lines: see `dlapp.client.Client.logs`.
        """

    def release(self, application_id: ApplicationId) -> str: ...

    def softkill(self, application_id: ApplicationId) -> str: ...

    def kill(self, application_id: ApplicationId) -> str: ...


class Application:
    """One application. ``str`` returns its id; applications with equal ids are equal.

    It uses its client's connections: use it before the client is closed, and in the client's thread.

    Args:
        client: executes the operations.
        application_id: the id of the application.
    """

    def __init__(self, client: ApplicationCalls, application_id: ApplicationId) -> None:
        self._client, self.application_id = client, application_id

    @property
    def id(self) -> str:
        """Return the id as text: ``application_1700000000000_0042``."""
        return str(self.application_id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<Application {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Application) and other.application_id == self.application_id

    def __hash__(self) -> int:
        return hash(self.application_id)

    def status(self) -> ApplicationView:
        """Return its current state. Raises NotFound."""
        return self._client.status(self.application_id)

    def usage(self) -> UsageHistory:
        """Return the resource usage of its containers over time. Raises NotFound."""
        return self._client.usage(self.application_id)

    def why(self) -> ApplicationView:
        """Return its current state; while it waits, ``waiting`` also has the change that would let it start now and an
        estimate of its start. Raises NotFound."""
        return self._client.why(self.application_id)

    def wait(
        self, timeout: float | None = None, on_change: Callable[[ApplicationView], None] = lambda _: None
    ) -> ApplicationView:
        """Wait until it has ended. Return its last view.

        Args:
            timeout: maximum wait [s]; None for no limit.
            on_change: called with the first view and each changed one.

        Raises:
            TimedOut: it has not ended by then; it continues to run.
        """
        return self._client.wait(self.application_id, on_change, timeout_s=timeout)

    def logs(self, container: int | None = None, stream: str | None = None, *, last_lines: int | None = None) -> str:
        """Return the output of its containers so far, as text; bytes that are not UTF-8 are replaced.

        Args:
            container: CONTAINER_INDEX of a single container; None for all.
            stream: only ``stdout``, ``stderr`` or ``dlapp.log``; None for stdout and stderr.
            last_lines: number of last lines of each stream; None for all.

        Returns:
            With ``container`` and ``stream`` exactly this stream. Otherwise lines with the prefixes of dlapp-logs:
            ``[0] `` or ``[0 err] ``, one stream after the other.

        Raises:
            NotFound: there is no such container.
        """
        streams = ("stdout", "stderr") if stream is None else (stream,)
        data: dict[tuple[int, str], bytearray] = {}
        for piece in self._client.logs(
            self.application_id, container=container, streams=streams, last_lines=last_lines
        ):
            data.setdefault((piece.log.index, piece.stream), bytearray()).extend(piece.data)
        texts = {
            key: data[key].decode(errors="replace")
            for key in sorted(data, key=lambda key: (key[0], streams.index(key[1])))
        }
        if container is not None and stream is not None:
            return "".join(texts.values())
        marks = {"stderr": " err", "dlapp.log": " dlapp"}
        return "".join(
            f"[{index}{marks.get(name, '')}] {line}\n"
            for (index, name), text in texts.items()
            for line in text.removesuffix("\n").split("\n")
            if text
        )

    def outputs(self) -> dict[str, str]:
        """Return the locations of its committed output: name of the section, empty for the unnamed one -> path or
        location.
        """
        return {
            one.name: local_path(one.target) if one.target.startswith(FILE) else one.target
            for one in self.status().outputs
            if one.committed
        }

    def output(self) -> str:
        """Return the location of its only output.

        Raises:
            NotFound: it has no committed output, or several (`outputs` has them).
        """
        found = self.outputs()
        if len(found) != 1:
            raise NotFound(f"{self.id} has {len(found) or 'no'} committed output{'s' if found else ''}, not one")
        return next(iter(found.values()))

    def release(self) -> str:
        """Let it start, if it is held; return a line on what will happen. Raises Denied."""
        return self._client.release(self.application_id)

    def softkill(self) -> str:
        """Request a soft-kill: SIGTERM, the grace time, output committed. Return a line on what will happen."""
        return self._client.softkill(self.application_id)

    def kill(self) -> str:
        """Kill it; everything of it is removed on return. Return a line on what happened."""
        return self._client.kill(self.application_id)

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: its current state."""
        from html import escape

        try:
            view = self.status()
        except DlappError as error:
            return f"<b>{escape(self.id)}</b>: {escape(str(error))}"
        rows = {
            "application": self.id,
            "name": view.appname,
            "state": view.state.value + (f", {view.cause.value}" if view.cause else ""),
            "phase": view.phase,
            "diagnostics": view.diagnostics,
            "containers": str(view.total_containers),
            "output": ", ".join(one.target for one in view.outputs if one.committed),
        }
        cells = (f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows.items() if text)
        return f"<table>{''.join(cells)}</table>"


def as_completed(applications: Iterable[Application], timeout: float | None = None) -> Iterator[Application]:
    """Yield applications as they end, already ended ones first.

    Args:
        applications: in any order; duplicates are yielded once.
        timeout: maximum total wait [s]; None for no limit.

    Raises:
        UsageError: an item is not an `Application`: a text has no client that could find it.
        TimedOut: some have not ended by then; they continue to run.
    """
    from dlapp.client.polling import POLL_INTERVAL_S, poll_pause_s

    if isinstance(applications, (str, Application)):
        raise UsageError("as_completed takes several applications, such as a list of them")
    left = dict.fromkeys(applications)
    for one in left:
        if not isinstance(one, Application):
            raise UsageError(f"as_completed takes applications, not {one!r}: client.application(...) returns one")
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    polls = 0
    while left:
        ended = [one for one in left if one.status().state.ended]
        for one in ended:
            del left[one]
            yield one
        if left and (left_s := deadline - time.monotonic()) <= 0:
            raise TimedOut(f"{len(left)} applications have not ended within {timeout:g} s: {', '.join(map(str, left))}")
        if left and not ended:
            # A status takes 1 ms on one machine and some on a cluster: many are polled less often.
            time.sleep(min(max(poll_pause_s(polls), POLL_INTERVAL_S * len(left) / 10), left_s))
            polls += 1
