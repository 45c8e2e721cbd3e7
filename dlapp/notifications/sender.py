"""Sender of an application's notifications, in background threads.

One thread takes events, and is the only one that reads and writes the outbox; each channel has its own thread, so that
a hung server delays only itself. All are daemon threads: the process may exit at any time, and the next reader of the
outbox continues.

    tell ──> queue ──> "notifications": outbox file ──> queues ──> "notify-webhook", "notify-mail", "notify-command"
                              └───────────────── delivered, or refused ──────────────┘
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from queue import Empty, SimpleQueue
from typing import NamedTuple

from dlapp.errors import DlappError, Unreachable
from dlapp.notifications.channels import NotDelivered, deliver
from dlapp.notifications.outbox import Outbox, OutboxFile, from_bytes, is_expired, to_bytes
from dlapp.system.clock import backoff_s, now_ms
from dlapp.system.logs import log
from dlapp.values.notification import Notification, NotificationSettings

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 300.0
WRITE_RETRY_S = 10.0
READ_TRIES = 6
"""Number of tries to read an outbox that is refused, for example as too large: if another user wrote it, it stays
refused."""
Deliver = Callable[[NotificationSettings, str, Notification], None]


class _Settled(NamedTuple):
    """A channel has delivered a notification, or never will."""

    notification_id: str
    channel: str


class _Recorded(NamedTuple):
    """A request to confirm that all earlier events are recorded."""

    event: threading.Event


class Sender:
    """Sender of new events, and of those that an earlier process left in the outbox.

    Args:
        settings: the settings of the channels.
        file: the file of the outbox.
        channels: those to use here; the outbox keeps the notifications of others. None for all.
        pauses, read_pauses: between tries to send, and to read the outbox [s].
    """

    def __init__(
        self,
        settings: NotificationSettings,
        file: OutboxFile,
        channels: Collection[str] | None = None,
        *,
        pauses: Callable[[], Iterator[float]] = lambda: backoff_s(FIRST_PAUSE_S, LONGEST_PAUSE_S),
        read_pauses: Callable[[], Iterator[float]] = lambda: backoff_s(1.0, 60.0),
        deliver: Deliver = deliver,
    ) -> None:
        self._read_pauses = read_pauses
        self._settings, self._file, self._pauses, self._deliver = settings, file, pauses, deliver
        self._channels = tuple(one for one in settings.channels if channels is None or one in channels)
        self._queue: SimpleQueue[Notification | _Settled | _Recorded | threading.Event] = SimpleQueue()
        self._queues: dict[str, SimpleQueue[Notification]] = {}
        self._waiters: list[threading.Event] = []
        self._has_other_pending = False  # the outbox has notifications for channels other than those here
        self._begun = False

    def enqueue(self, one: Notification) -> None:
        """Queue an event for sending, if it is selected; return at once."""
        if one.event in self._settings.events:
            self._queue.put(one)
            self.begin()

    def begin(self) -> None:
        """Start sending the content of the outbox; return at once."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._run, name="notifications", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Return whether all events are delivered, or have expired, within the time."""
        if not self._begun:
            return True
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def wait_recorded(self, timeout_s: float) -> None:
        """Wait until all events are in the outbox, or were sent directly."""
        if self._begun:
            recorded = threading.Event()
            self._queue.put(_Recorded(recorded))
            recorded.wait(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Wait until all are delivered, and remove the outbox then; return whether that was in time."""
        if not self.wait(timeout_s) or self._has_other_pending:
            return False
        try:
            self._file.remove()
        except (DlappError, OSError) as error:
            log.warning(f"the outbox could not be removed: {error}")
        return True

    def _run(self) -> None:
        outbox = self._read().without_expired(now_ms())
        for one, channel in outbox.for_channels(self._channels):
            self._dispatch(one, channel)
        unwritten = False
        while True:
            try:
                item = self._queue.get(timeout=WRITE_RETRY_S if unwritten else None)
            except Empty:
                item = None
            before, accepted = outbox, None
            if isinstance(item, Notification):
                outbox = outbox.add(item, self._settings.channels)
                accepted = item if outbox is not before else None
            elif isinstance(item, _Settled):
                outbox = outbox.without(item.notification_id, item.channel)
            elif isinstance(item, _Recorded):
                item.event.set()
            elif item is not None:
                self._waiters.append(item)
            if outbox is not before or unwritten:
                unwritten = not self._write(outbox, quiet=unwritten)
            if accepted is not None:
                for channel in self._channels:
                    self._dispatch(accepted, channel)
            self._has_other_pending = bool(outbox.pending)
            if not unwritten and not outbox.for_channels(self._channels):
                for waiter in self._waiters:
                    waiter.set()
                self._waiters.clear()

    def _read(self) -> Outbox:
        for tries, pause_s in enumerate(self._read_pauses(), start=1):
            try:
                return from_bytes(self._file.read())
            except (DlappError, OSError) as error:
                if tries >= READ_TRIES and not isinstance(error, Unreachable):
                    log.warning(f"notifications that were recorded before are given up: {error}")
                    return Outbox()
                log.warning(f"notifications are delayed: {error}")
            time.sleep(pause_s)
        raise AssertionError  # the pauses are endless

    def _write(self, outbox: Outbox, *, quiet: bool) -> bool:
        try:
            self._file.write(to_bytes(outbox))
        except (DlappError, OSError) as error:
            if not quiet:
                log.warning(f"notifications cannot be recorded, and are sent nevertheless: {error}")
            return False
        return True

    def _dispatch(self, one: Notification, channel: str) -> None:
        if channel not in self._queues:
            queue: SimpleQueue[Notification] = SimpleQueue()
            self._queues[channel] = queue
            target = self._send_all
            threading.Thread(target=target, args=(channel, queue), name=f"notify-{channel}", daemon=True).start()
        self._queues[channel].put(one)

    def _send_all(self, channel: str, queue: SimpleQueue[Notification]) -> None:
        while True:
            one = queue.get()
            self._send(channel, one)
            self._queue.put(_Settled(one.id, channel))

    def _send(self, channel: str, one: Notification) -> None:
        """Deliver with unlimited retries; drop refused and expired notifications."""
        is_logged = False
        for pause_s in self._pauses():
            if is_expired(one, now_ms()):
                log.warning(f"{channel}: the event {one.id} could not be delivered in time and is given up")
                return
            try:
                self._deliver(self._settings, channel, one)
                return
            except NotDelivered as error:
                if error.final:
                    log.warning(f"{channel}: the event {one.id} is given up: {error}")
                    return
                if not is_logged:
                    log.warning(f"{channel}: {error}; the event {one.id} will be sent again")
                    is_logged = True
            time.sleep(pause_s)
