"""The operations of a client that read what programs write, and that reach into their containers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dlapp.client.operations.queries import Queries
from dlapp.errors import (
    NotFound,
    Unreachable,
)

# Modules that define classes are imported where they are needed: dlapp-status needs none of them.
if TYPE_CHECKING:
    from dlapp.client.logs import LogPiece
    from dlapp.client.operations.connections import AnyApplication
    from dlapp.client.streams.opening import StreamOpener
    from dlapp.cluster.engine import Engine, LogFiles
    from dlapp.values.ids import ApplicationId, ContainerId
    from dlapp.values.report import ApplicationView

LOG_AGGREGATION_S = 20.0
"""How long after an application's end a cluster may take to aggregate its logs; until then they may be unavailable."""
TAIL_BYTES = 4 << 10
"""Maximum size of a stream's last lines that is read."""
TAIL_TIMEOUT_S = 5.0
"""How long to wait for the last lines of a log that a cluster is just aggregating."""


class LogChoice(NamedTuple):
    """Choice among the logs of an application; see `dlapp.client.Client.logs`.

    Args:
        container, try_number, generation: see there.
        trial_name: name of the try of a trial; empty: of containers.
    """

    container: int | ContainerId | None
    try_number: int | None
    generation: int | None
    trial_name: str

    def is_wanted(self, log: LogFiles) -> bool:
        """Return whether the log of a container is read."""
        return self.container is None or self.container in (log.index, log.container_id)


class LogSource:
    """The chosen logs of an application that may still run.

    Args:
        engine: the engine of the application.
        status: reads its view.
        latest: its view now.
        choice: which logs.
        follow: a request without an answer is repeated.
        on_change: called with each changed view.

    Attributes:
        latest: the last view that was read.
    """

    def __init__(
        self,
        engine: Engine,
        status: Callable[[ApplicationId], ApplicationView],
        latest: ApplicationView,
        choice: LogChoice,
        follow: bool,
        on_change: Callable[[ApplicationView], None],
    ) -> None:
        self._engine, self._status, self.latest = engine, status, latest
        self._choice, self._follow, self._on_change = choice, follow, on_change

    def poll(self) -> tuple[bool, Sequence[LogFiles]]:
        """Return whether the application has ended, and its logs."""
        from dlapp.client.logs import of_generation, of_trial

        choice, logs = self._choice, self._logs_unless_away()
        try:
            seen, self.latest = self.latest, self._status(self.latest.application_id)
        except Unreachable:
            if not self._follow:
                raise
            return False, logs or ()
        if self.latest != seen:
            self._on_change(self.latest)
        has_ended = self.latest.state.ended
        if has_ended:
            # The logs may have moved since the end of the application, and the last container may be new.
            logs = self._logs()
        if logs is None:
            return False, ()
        _check_container(choice.container, self.latest, logs)
        if choice.try_number is not None and not (self._follow and not has_ended):
            _check_try(choice.try_number, self.latest, [log for log in logs if choice.is_wanted(log)])
        if choice.trial_name:
            return has_ended, [of_trial(log, choice.trial_name) for log in logs]
        former = _before_generation(choice.generation, self.latest, logs)
        return has_ended, [of_generation(log, one) if one is not None else log for log, one in former]

    def _logs(self) -> Sequence[LogFiles]:
        try_number = _try_of(self._choice.container, self.latest, self._choice.try_number)
        return self._engine.logs(self.latest.application_id, try_number)

    def _logs_unless_away(self) -> Sequence[LogFiles] | None:
        try:
            return self._logs()
        except Unreachable:
            if not self._follow:
                raise
            return None

    def aggregated(self, log: LogFiles, stream: str) -> Iterator[bytes] | None:
        """Return a log that a cluster has moved; see `dlapp.cluster.engine.Engine.aggregated_log`."""
        from dlapp.client.logs import STREAMS
        from dlapp.system.logs.log_times import former_name

        if self._choice.trial_name:
            return self._engine.aggregated_log(self.latest, log, f"{self._choice.trial_name}.{stream}")
        ((_, former),) = _before_generation(self._choice.generation, self.latest, [log])
        name = stream if former is None or stream not in STREAMS else former_name(stream, former)
        return self._engine.aggregated_log(self.latest, log, name)


class Output(Queries):
    """Reader of output, and opener of streams."""

    def logs(
        self,
        application_id: AnyApplication,
        *,
        container: int | ContainerId | None = None,
        try_number: int | None = None,
        generation: int | None = None,
        trial: int | None = None,
        streams: Sequence[str] = ("stdout", "stderr"),
        last_lines: int | None = None,
        since_ms: int | None = None,
        times: bool = False,
        follow: bool = False,
        on_change: Callable[[ApplicationView], None] = lambda _: None,
        missing: Callable[[str], None] = lambda _: None,
    ) -> Iterator[LogPiece]:
        """Yield the output of the payloads, as bytes; stdout and stderr of a container in the order of time.

        Args:
            application_id: the id of the application.
            container: CONTAINER_INDEX or id of a single container; None for all.
            try_number: the try of each index, from 1; None for the last one, or the one in the container's id.
            generation: the generation of the gang, from 0, to read output from before a restart; None for the last one.
            trial: number of a trial of a sweep, to read the output of its last try instead of that of containers.
            streams: any of ``stdout``, ``stderr`` and ``dlapp.log`` (dlapp's own log of the container).
            last_lines: start with this number of last lines of each stream; None for all.
            since_ms: start with the lines that were complete at this time [ms since 1970], and with those whose time is
                unknown; None for all.
            times: include the time of writing with each piece of stdout or stderr; if both are read, it is always
                included.
            follow: continue until the application has ended.
            on_change: called with every new view while following.
            missing: called with a line for each log of an ended application that does not exist any more; and for each
                that cannot be read now while its application runs, which is retried.

        Raises:
            NotFound: there is no such application, or (if that can be known) no such container, try or generation.
        """
        from dlapp.client.logs import Logs, pieces_since, read_logs
        from dlapp.client.polling import poll_pause_s
        from dlapp.cluster.foreign import CUT

        application_id, trial_name = self._id(application_id), ""
        if trial is not None:
            container, trial_name = self._try_of_trial(application_id, trial)
            application_id = container.application  # this sweep may continue the one that ran it
        latest = self.status(application_id)
        for line in latest.changes:
            if line.startswith(CUT):
                missing(line)
        choice = LogChoice(container=container, try_number=try_number, generation=generation, trial_name=trial_name)
        source = LogSource(self._engine_of(application_id), self.status, latest, choice, follow, on_change)
        on_change(latest)
        pieces = read_logs(
            source.poll,
            streams=streams,
            wanted=choice.is_wanted,
            opened=Logs(
                last_lines,
                source.aggregated,
                lambda: _log_aggregation_left_s(source.latest),
                lambda: self._engines.login,
                lambda: self._engines.certificates,
            ),
            times=times or since_ms is not None,
            follow=follow,
            pause=lambda quiet: time.sleep(poll_pause_s(quiet)),
            missing=missing,
        )
        return pieces if since_ms is None else pieces_since(pieces, since_ms)

    def _try_of_trial(self, application_id: ApplicationId, number: int) -> tuple[ContainerId, str]:
        """Return the container of the last try of a trial, and the name of the try.

        Raises:
            NotFound: it was never started.
        """
        from dlapp.values.ids import ContainerId, trial_part

        results = self.sweep(application_id).results()
        found = next((one for one in results.trials if one.number == number), None)
        if found is None or not found.container_id:
            known = f"it has {results.total}, numbered from 0" if number >= results.total else "it was not started yet"
            raise NotFound(f"{application_id} has no logs of trial {number}: {known}")
        return ContainerId.from_text(found.container_id), trial_part(number, found.tries)

    def log_tail(
        self, application_id: AnyApplication, container: int, *, stream: str = "stderr", lines: int = 10
    ) -> bytes:
        """Return the last lines of one stream of a container, from its last `TAIL_BYTES` bytes; the first line may be
        cut.

        Args:
            application_id: the id of the application.
            container: CONTAINER_INDEX.
            stream: ``stdout``, ``stderr`` or ``dlapp.log``.
            lines: number of lines.

        Raises:
            NotFound: there is no such application, or a log of an ended one does not exist.
            Denied, Unreachable: it cannot be read.
        """
        return self.log_tails(self.status(application_id))(container, stream, lines)

    def log_tails(self, view: ApplicationView) -> Callable[[int, str, int], bytes]:
        """Return a function of a container, a stream and a number of lines that calls `log_tail`.

        The locations of the logs are read once, at its first call.

        Args:
            view: the view of the application.
        """
        from dlapp.client.logs import Logs, read_logs

        engine = self._engine_of(view.application_id)
        found: list[Sequence[LogFiles]] = []

        def poll() -> tuple[bool, Sequence[LogFiles]]:
            if not found:
                found.append(engine.logs(view.application_id))
            return view.state.ended, found[0]

        def log_tail(container: int, stream: str, lines: int) -> bytes:
            deadline = time.monotonic() + TAIL_TIMEOUT_S
            missing: list[str] = []
            opened = Logs(
                lines,
                lambda log, name: engine.aggregated_log(view, log, name),
                lambda: min(_log_aggregation_left_s(view), deadline - time.monotonic()),
                lambda: self._engines.login,
                lambda: self._engines.certificates,
                last_bytes=TAIL_BYTES,
            )
            data = bytearray()
            with contextlib.closing(opened):
                for piece in read_logs(
                    poll,
                    streams=(stream,),
                    wanted=lambda log: log.index == container,
                    opened=opened,
                    missing=missing.append,
                ):
                    data += piece.data
                    if len(data) > TAIL_BYTES:
                        break  # still being written
            if missing:
                raise NotFound(missing[0])
            return bytes(data[:TAIL_BYTES])

        return log_tail

    def stream_opener(self, application_id: AnyApplication) -> StreamOpener:
        """Return a thread-safe opener of streams to the containers of an application: the caller's own, or one whose
        `view_acl` contains the caller, to ports only.

        Raises:
            NotFound: it does not exist, or has ended.
            Denied: it is owned by another user, or was submitted from another machine.
            StreamRefused: it has not started yet.
        """
        from dlapp.client.streams.opening import StreamOpener

        application_id = self._id(application_id)
        return StreamOpener(*self._engine_of(application_id).control_access(application_id))


def _log_aggregation_left_s(view: ApplicationView) -> float:
    """Return how long from now the logs of an ended application may be unavailable."""
    return LOG_AGGREGATION_S + (view.finished_ms or 0) / 1000 - time.time()


def _check_container(container: int | ContainerId | None, view: ApplicationView, logs: Sequence[LogFiles]) -> None:
    """Refuse a container that the application cannot have; one that may still be started is waited for."""
    if isinstance(container, int):
        if view.total_containers and not 0 <= container < view.total_containers:
            count = view.total_containers
            raise NotFound(f"{view.application_id} has no container {container}: it has {count}, counted from 0")
    elif container is not None and all(log.container_id != container for log in logs):
        raise NotFound(f"{view.application_id} has no logs of {container}")


def _try_of(container: int | ContainerId | None, view: ApplicationView, try_number: int | None) -> int | None:
    """Return the requested try: each earlier container of an index has its own."""
    earlier = (old for one in view.containers for old in one.earlier if old.container_id == container)
    return try_number if try_number is not None else next((old.attempt for old in earlier), None)


def _check_try(try_number: int, view: ApplicationView, logs: Sequence[LogFiles]) -> None:
    """Refuse a try that no index has had, or that is not shown."""
    if not logs:
        most = max((one.attempt for one in view.containers), default=0)
        times = "once" if most == 1 else f"{most} times at the most"
        raise NotFound(f"{view.application_id} has no try {try_number}: each container was started {times}")


def _before_generation(
    generation: int | None, view: ApplicationView, logs: Sequence[LogFiles]
) -> list[tuple[LogFiles, int | None]]:
    """Yield each log, with the generation if its file names contain it: None means the last one.

    Raises:
        NotFound: no container has had such a generation yet.
    """
    if generation is None:
        return [(log, None) for log in logs]
    last = {one.index: one.generation for one in view.containers}
    if logs and all(generation > last.get(log.index, 0) for log in logs):
        most = max(last.get(log.index, 0) for log in logs)
        raise NotFound(f"{view.application_id} has no generation {generation}: its last one is {most}")
    return [(log, generation if generation < last.get(log.index, 0) else None) for log in logs]
