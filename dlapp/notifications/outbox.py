"""Outbox of one application: the undelivered notifications, and the ids of all accepted ones.

On a cluster without Kerberos, other users may also write to this file. So it contains only what is sent, and never
where to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Protocol

from dlapp.errors import SpecError
from dlapp.value import Value, replace
from dlapp.values.notification import DONE, EVENTS, FAILED, KILLED, Notification
from dlapp.values.serialization import from_json, parse_json, to_json

MAX_BYTES = 4 << 20
"""Size limit of a file [bytes]. `MAX_EVENTS` events of `MAX_TEXT` characters, each escaped by JSON with up to 6 bytes,
have less."""
MAX_EVENTS = 200
"""Maximum number of events of one application; above it only the end is recorded."""
MAX_TEXT = 2000
MAX_AGE_MS = 24 * 3_600_000
"""Age from which an undelivered event is given up."""
_ENDS = (FAILED, KILLED, DONE)
_ID = re.compile(r"[!-~]{1,300}")
_MAX_AT_MS = 253_402_300_799_999
"""The end of the year 9999."""


class PendingNotification(Value):
    """A notification, and the channels that have not delivered it yet."""

    notification: Notification
    channels: tuple[str, ...]


class Outbox(Value):
    """State of an application's notifications.

    Args:
        taken: ids of all accepted notifications; a known id is not accepted again.
        pending: in the order of acceptance.
    """

    taken: tuple[str, ...] = ()
    pending: tuple[PendingNotification, ...] = ()

    def add(self, one: Notification, channels: tuple[str, ...]) -> Outbox:
        """Add a notification, unless it is known or there are too many."""
        if one.id in self.taken or not channels or (len(self.taken) >= MAX_EVENTS and one.event not in _ENDS):
            return self
        one = replace(one, text=one.text[:MAX_TEXT])
        return Outbox((*self.taken, one.id), (*self.pending, PendingNotification(one, channels)))

    def without(self, notification_id: str, channel: str) -> Outbox:
        """Remove a channel that has delivered a notification, or never will."""
        pending = []
        for one in self.pending:
            if one.notification.id == notification_id:
                one = replace(one, channels=tuple(name for name in one.channels if name != channel))
            if one.channels:
                pending.append(one)
        return replace(self, pending=tuple(pending))

    def without_expired(self, now_ms: int) -> Outbox:
        """Remove expired notifications, so that undeliverable ones do not stay forever."""
        return replace(self, pending=tuple(one for one in self.pending if not is_expired(one.notification, now_ms)))

    def for_channels(self, channels: Iterable[str]) -> list[tuple[Notification, str]]:
        """Return the notifications that these channels must deliver."""
        known = frozenset(channels)
        return [(one.notification, name) for one in self.pending for name in one.channels if name in known]


class OutboxFile(Protocol):
    """The file of an outbox, on any file system. Methods raise DlappError or OSError."""

    def read(self) -> bytes | None:
        """Return its content; None if it does not exist."""

    def write(self, data: bytes) -> None:
        """Replace it; it is durable after the return."""

    def remove(self) -> None:
        """Remove it, if it exists."""


def to_bytes(outbox: Outbox) -> bytes:
    """Return the serialized outbox."""
    return json.dumps(to_json(outbox), separators=(",", ":")).encode()


def from_bytes(data: bytes | None) -> Outbox:
    """Parse an outbox; return an empty one if the file is missing or invalid."""
    if data is None:
        return Outbox()
    try:
        found = from_json(Outbox, parse_json(data))
    except (SpecError, ValueError):
        return Outbox()  # of a later version, or not written by dlapp: its content is not worth a failure
    bounded = tuple(one for one in found.pending if _can_be_sent(one.notification))
    return Outbox(found.taken[: MAX_EVENTS + len(_ENDS)], bounded[: MAX_EVENTS + len(_ENDS)])


def _can_be_sent(one: Notification) -> bool:
    """Return whether dlapp can have written a notification: its id is sent in headers."""
    return len(one.text) <= MAX_TEXT and bool(_ID.fullmatch(one.id)) and 0 <= one.at_ms <= _MAX_AT_MS


def is_expired(one: Notification, now_ms: int) -> bool:
    """Return whether it has expired, or its event is unknown to this version.

    One with a time in the future counts as expired: it would stay forever.
    """
    return abs(now_ms - one.at_ms) > MAX_AGE_MS or one.event not in EVENTS
