"""Test what somebody who can write another user's outbox, on a cluster without Kerberos, can do to notifications."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest

from dlapp.errors import DlappError, Unreachable
from dlapp.notifications.channels import deliver
from dlapp.notifications.outbox import (
    MAX_AGE_MS,
    MAX_BYTES,
    MAX_EVENTS,
    MAX_TEXT,
    Outbox,
    PendingNotification,
    from_bytes,
    is_expired,
    to_bytes,
)
from dlapp.notifications.sender import READ_TRIES, Sender
from dlapp.system.clock import now_ms
from dlapp.system.files import UntrustedFile
from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.notification import (
    COMMAND,
    EVENTS,
    MAIL,
    RUNNING,
    WEBHOOK,
    Mail,
    Notification,
    NotificationSettings,
    id_of,
)

APPLICATION = ApplicationId(1_700_000_000_000, 42)


class ForgedFile:
    """An outbox that somebody else wrote."""

    def __init__(self, data: bytes) -> None:
        self.data: bytes | None = data

    def read(self) -> bytes | None:
        return self.data

    def write(self, data: bytes) -> None:
        self.data = data

    def remove(self) -> None:
        self.data = None


def event(key: str = "") -> Notification:
    return Notification(
        id=id_of(APPLICATION, RUNNING, key),
        event=RUNNING,
        at_ms=now_ms(),
        application_id=APPLICATION,
        appname="mnist",
        username="tony",
    )


FORGED: list[dict[str, Any]] = [
    {"id": "x\r\nBcc: all@example.org"},
    {"id": "é"},
    {"id": ""},
    {"id": "x" * 2000},
    {"at_ms": 8 * 10**15},
    {"at_ms": -(10**15)},
    {"event": "unknown"},
    {"appname": "a\nBcc: b", "username": "\ud800"},
]


@pytest.mark.parametrize("forged", FORGED, ids=str)
def test_a_forged_event_does_not_keep_a_channel_from_the_next_ones(forged: dict[str, Any]) -> None:
    mail = Mail(to=("tony@example.org",), sender="tony@example.org", server="127.0.0.1", port=1, security="none")
    settings = NotificationSettings(events=EVENTS, waiting_after_s=60.0, mail=mail)
    file = ForgedFile(to_bytes(Outbox((), (PendingNotification(replace(event(), **forged), (MAIL,)),))))
    tried, done = list[str](), threading.Event()

    def try_to(settings: NotificationSettings, channel: str, one: Notification) -> None:
        tried.append(one.id)
        if one.id == event("next").id:
            done.set()
        deliver(settings, channel, one)

    sender = Sender(settings, file, pauses=lambda: iter([0.0]), deliver=try_to)
    sender.enqueue(event("next"))
    assert sender.wait(120.0)
    assert done.is_set()
    assert tried[-1] == event("next").id


def test_an_event_of_the_future_does_not_stay_for_ever() -> None:
    one = event()
    assert is_expired(one, one.at_ms - MAX_AGE_MS - 1)
    assert not is_expired(one, one.at_ms - 1)


class RefusedFile(ForgedFile):
    """An outbox that is too large, or not ours, until it is replaced."""

    def read(self) -> bytes | None:
        raise self.error

    error: Exception


@pytest.mark.parametrize("error", [DlappError("larger than 4194304 bytes"), UntrustedFile("outbox", "belongs to eve")])
def test_an_unreadable_outbox_is_dropped_and_later_events_are_sent(error: Exception) -> None:
    file = RefusedFile(b"")
    file.error = error
    sent: list[str] = []
    settings = NotificationSettings(events=EVENTS, waiting_after_s=60.0, command=("/bin/true",))
    sender = Sender(
        settings, file, read_pauses=lambda: repeat(0.0), deliver=lambda _settings, _channel, one: sent.append(one.id)
    )
    sender.enqueue(event("next"))
    assert sender.wait(120.0)
    assert sent == [event("next").id]


def test_an_outbox_on_an_unreachable_file_system_is_waited_for() -> None:
    file = RefusedFile(b"")
    file.error = Unreachable("no NameNode answers")
    tries = threading.Semaphore(0)

    def pauses() -> Iterator[float]:
        for _ in range(2 * READ_TRIES):
            yield 0.0
            tries.release()
        threading.Event().wait()

    settings = NotificationSettings(events=EVENTS, waiting_after_s=60.0, command=("/bin/true",))
    sender = Sender(settings, file, read_pauses=pauses, deliver=lambda *_: pytest.fail("it was sent"))
    sender.enqueue(event("next"))
    assert all(tries.acquire(timeout=120.0) for _ in range(2 * READ_TRIES))
    assert not sender.wait(0.0)


def test_the_largest_outbox_can_be_read_again() -> None:
    outbox = Outbox()
    for number in range(2 * MAX_EVENTS):
        outbox = outbox.add(replace(event(f"{number}"), text="é" * 2 * MAX_TEXT), (MAIL, WEBHOOK, COMMAND))
    assert len(outbox.pending) == MAX_EVENTS
    assert len(to_bytes(outbox)) < MAX_BYTES
    assert from_bytes(to_bytes(outbox)) == outbox
