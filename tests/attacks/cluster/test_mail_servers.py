"""Test what a mail server, who answers in its place before TLS begins, or a webhook can do to an ApplicationMaster."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from dlapp.notifications.channels import NotDelivered, deliver
from dlapp.system.clock import now_ms
from dlapp.values.notification import (
    MAIL,
    NO_TLS,
    RUNNING,
    START_TLS,
    WEBHOOK,
    Mail,
    Notification,
    NotificationSettings,
    Webhook,
)
from tests.attacks.cluster.test_outboxes import APPLICATION

MAX_SENT_BYTES = 256 << 20


@contextlib.contextmanager
def server_without_end(greeting: bytes, line: bytes, sent: list[int]) -> Iterator[int]:
    """Serve one connection by a greeting and then one line again and again; yield the port."""

    def serve() -> None:
        with contextlib.suppress(OSError), listening.accept()[0] as connection:
            connection.sendall(greeting)
            while sum(sent) < MAX_SENT_BYTES:
                connection.sendall(line * 1000)
                sent.append(len(line) * 1000)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("security", [NO_TLS, START_TLS])
@pytest.mark.parametrize(
    ("greeting", "line"),
    [(b"", b"220-hello\r\n"), (b"220 hello\r\n", b"250-X\r\n"), (b"", b"220-" + b"x" * 5000 + b"\r\n")],
)
def test_an_answer_without_end_is_not_kept(greeting: bytes, line: bytes, security: str) -> None:
    sent: list[int] = []
    one = Notification(
        id="1", event=RUNNING, at_ms=now_ms(), application_id=APPLICATION, appname="mnist", username="tony"
    )
    with server_without_end(greeting, line, sent) as port:
        mail = Mail(to=("a@example.org",), sender="a@example.org", server="127.0.0.1", port=port, security=security)
        settings = NotificationSettings(events=(RUNNING,), waiting_after_s=60.0, mail=mail)
        with pytest.raises(NotDelivered) as caught:
            deliver(settings, MAIL, one)
        assert not caught.value.final
    assert sum(sent) < MAX_SENT_BYTES


@pytest.mark.parametrize("by_proxy", [False, True])
def test_interim_answers_of_a_webhook_without_end_are_refused(by_proxy: bool) -> None:
    sent: list[int] = []
    one = Notification(
        id="1", event=RUNNING, at_ms=now_ms(), application_id=APPLICATION, appname="mnist", username="tony"
    )
    with server_without_end(b"", b"HTTP/1.1 100 Continue\r\n\r\n", sent) as port:
        url = f"http://127.0.0.1:{port}"
        webhook = Webhook("http://webhook.invalid/", proxy=url) if by_proxy else Webhook(url)
        settings = NotificationSettings(events=(RUNNING,), waiting_after_s=60.0, webhook=webhook)
        with pytest.raises(NotDelivered) as caught:
            deliver(settings, WEBHOOK, one)
        assert not caught.value.final
    assert sum(sent) < MAX_SENT_BYTES
