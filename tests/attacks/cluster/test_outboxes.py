"""Test what somebody who can write another user's outbox, on a cluster without Kerberos, can do to notifications."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dlapp.ids import ApplicationId
from dlapp.notification import EVENTS, MAIL, RUNNING, Mail, Notification, NotificationSettings, id_of
from dlapp.notifications.channels import deliver
from dlapp.notifications.outbox import MAX_AGE_MS, Outbox, PendingNotification, is_expired, to_bytes
from dlapp.notifications.sender import Sender
from dlapp.system.clock import now_ms
from dlapp.value import replace

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
    sender.tell(event("next"))
    assert sender.wait(30.0)
    assert done.is_set()
    assert tried[-1] == event("next").id


def test_an_event_of_the_future_does_not_stay_for_ever() -> None:
    one = event()
    assert is_expired(one, one.at_ms - MAX_AGE_MS - 1)
    assert not is_expired(one, one.at_ms - 1)
