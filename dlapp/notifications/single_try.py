"""A single attempt to deliver the content of outboxes, by a command that a user waits for.

Each channel has a thread, so that a hung server delays only itself, and is used until it fails to accept a
notification. Undelivered notifications stay in the outbox for the next command.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from dlapp.errors import DlappError, Unreachable
from dlapp.notifications.channels import NotDelivered, deliver
from dlapp.notifications.outbox import OutboxFile, from_bytes, to_bytes
from dlapp.system.clock import now_ms
from dlapp.system.logs import log
from dlapp.values.notification import Notification, NotificationSettings

Deliver = Callable[[NotificationSettings, str, Notification], None]
_Settled = tuple[int, str, str]
"""The path of an outbox, the id of a notification, and the channel that has accepted it or is given up."""


def deliver_pending(
    settings: NotificationSettings,
    files: Sequence[OutboxFile],
    timeout_s: float,
    *,
    ended: bool = True,
    deliver: Deliver = deliver,
) -> bool:
    """Deliver the content of outboxes; return whether all attempts have ended.

    Args:
        settings: the settings of the channels.
        files: the files of the outboxes.
        timeout_s: maximum wait for the deliveries [s].
        ended: the applications have ended, and empty outboxes are removed; else they are kept, as they have the ids of
            what was sent.
        deliver: delivers one notification on one channel.

    Raises:
        Unreachable: the file system does not answer.
    """
    todo = dict[str, list[tuple[int, Notification]]]()
    for place, file in enumerate(files):
        try:
            outbox = from_bytes(file.read()).without_expired(now_ms())
            if not outbox.pending and ended:
                file.remove()
        except Unreachable:
            raise
        except (DlappError, OSError):
            continue  # an unreadable or unremovable one must not prevent the others
        for one, channel in outbox.for_channels(settings.channels):
            todo.setdefault(channel, []).append((place, one))
    settled = SimpleQueue[_Settled | None]()
    for channel, ones in todo.items():
        given = settings, channel, ones, settled, deliver
        threading.Thread(target=_deliver_in_order, args=given, name=f"notify-{channel}", daemon=True).start()
    working, until = len(todo), time.monotonic() + timeout_s
    while working:
        try:
            item = settled.get(timeout=max(0.0, until - time.monotonic()))
        except Empty:
            return False
        if item is None:
            working -= 1
            continue
        place, notification_id, channel = item
        try:
            _record(files[place], notification_id, channel, keep_empty=not ended)
        except Unreachable:
            raise
        except (DlappError, OSError):
            continue  # it is sent again
    return True


def _record(file: OutboxFile, notification_id: str, channel: str, *, keep_empty: bool) -> None:
    # Read again: an ApplicationMaster that started meanwhile, or another command, may have changed it.
    outbox = from_bytes(file.read()).without_expired(now_ms()).without(notification_id, channel)
    if outbox.pending or keep_empty:
        file.write(to_bytes(outbox))
    else:
        file.remove()


def _deliver_in_order(
    settings: NotificationSettings,
    channel: str,
    ones: Sequence[tuple[int, Notification]],
    settled: SimpleQueue[_Settled | None],
    deliver: Deliver,
) -> None:
    try:
        for place, one in ones:
            try:
                deliver(settings, channel, one)
            except NotDelivered as error:
                if not error.final:
                    return
                # Not to standard output, which is for the command's data.
                os.write(2, log.line("WARNING", f"{channel}: the event {one.id} is given up: {error}"))
            settled.put((place, one.id, channel))
    finally:
        settled.put(None)
