"""Deliveries to real servers on this machine that take, refuse, hang and come back."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from email.message import EmailMessage
from pathlib import Path

import pytest

from dlapp.notifications import channels
from dlapp.notifications.channels import NotDelivered, deliver
from dlapp.notifications.outbox import Outbox, from_bytes, to_bytes
from dlapp.notifications.sender import Sender
from dlapp.system import clock
from dlapp.value import replace
from dlapp.values.notification import (
    COMMAND,
    FAILED,
    JSON,
    MAIL,
    NO_TLS,
    SLACK,
    START_TLS,
    WEBHOOK,
    Mail,
    Notification,
    Webhook,
)
from dlapp.values.notification import NotificationSettings as Settings
from tests.applications import wait_for
from tests.notifications.test_outbox import APPLICATION, event
from tests.services.http.http_server import Answer, Request, http_server
from tests.services.mail_server import mail_server
from tests.services.ports import held

SECRET = "T0/B0/secret"


def settings(**fields: object) -> Settings:
    return Settings(events=("failed", "running"), waiting_after_s=3600.0, **fields)  # type: ignore[arg-type]


def free_port() -> int:
    port, sockets = held()
    for listener in sockets:
        listener.close()
    return port


def mail_to(port: int, **fields: object) -> Mail:
    given = {"to": ("tony@example.org",), "sender": "dlapp@example.org", "server": "127.0.0.1", "port": port}
    return Mail(**{**given, "security": NO_TLS, **fields})  # type: ignore[arg-type]


def test_a_webhook_gets_the_documented_json_and_the_headers_of_the_user() -> None:
    taken: list[Request] = []

    def answer(request: Request) -> Answer:
        taken.append(request)
        return Answer(204)

    with http_server(answer) as url:
        hook = Webhook(f"{url}/{SECRET}", JSON, {"Authorization": "Bearer abc"})
        deliver(settings(webhook=hook), WEBHOOK, replace(event(FAILED), text="exit code 3", final_status="FAILED"))
    (request,) = taken
    assert (request.method, request.path, request.headers["Authorization"]) == ("POST", f"/{SECRET}", "Bearer abc")
    assert request.headers["X-Dlapp-Event-Id"] == f"{APPLICATION}/failed"
    assert json.loads(request.body) == {
        "version": 1,
        "id": f"{APPLICATION}/failed",
        "event": "failed",
        "at": "2023-11-14T22:13:20.000Z",
        "at_ms": 1_700_000_000_000,
        "application_id": str(APPLICATION),
        "appname": "mnist",
        "username": "tony",
        "submitter": "",
        "queue": "",
        "project": "",
        "text": "exit code 3",
        "final_status": "FAILED",
        "cause": "",
        "title": f"mnist ({APPLICATION}): failed",
    }


def test_slack_messages_mention_no_user() -> None:
    taken: list[bytes] = []

    def answer(request: Request) -> Answer:
        taken.append(request.body)
        return Answer()

    with http_server(answer) as url:
        one = replace(event(FAILED), appname="<!channel> a&b", text="why")
        deliver(settings(webhook=Webhook(url, SLACK)), WEBHOOK, one)
    text = f"&lt;!channel&gt; a&amp;b ({APPLICATION}): failed\nwhy"
    assert [json.loads(item) for item in taken] == [{"text": text}]


@pytest.mark.parametrize(
    ("status", "is_final"), [(301, True), (404, True), (403, True), (408, False), (429, False), (500, False)]
)
def test_retry_temporary_http_errors_only(status: int, is_final: bool) -> None:
    headers = (("Location", "http://127.0.0.1:1/elsewhere"),)
    with http_server(lambda _: Answer(status, b"x", headers)) as url, pytest.raises(NotDelivered) as caught:
        deliver(settings(webhook=Webhook(f"{url}/{SECRET}")), WEBHOOK, event())
    assert (str(caught.value), caught.value.final) == (f"the webhook answered {status}", is_final)


def test_an_unreachable_webhook_is_retried_without_naming_its_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "TIMEOUT_S", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:  # it never answers
        for port in (silent.getsockname()[1], free_port()):
            with pytest.raises(NotDelivered) as caught:
                deliver(settings(webhook=Webhook(f"http://127.0.0.1:{port}/{SECRET}")), WEBHOOK, event())
            assert not caught.value.final
            assert "secret" not in str(caught.value)


def test_a_mail_describes_the_event_with_a_stable_message_id() -> None:
    mails: list[EmailMessage] = []

    def answer(message: EmailMessage) -> str:
        mails.append(message)
        return "250 OK"

    port = free_port()
    with mail_server(answer, port=port):
        one = replace(event(FAILED), appname="mnist\nBcc: all@example.org", text="exit code 3\nnext line")
        for _ in range(2):
            deliver(settings(mail=mail_to(port, to=("tony@example.org", "ops@example.org"))), MAIL, one)
    first, second = mails
    assert first["Message-ID"] == second["Message-ID"] == f"<{APPLICATION}.failed@example.org>"
    assert (first["To"], first["Bcc"]) == ("tony@example.org, ops@example.org", None)
    assert first["Subject"].strip() == f"[dlapp] mnist Bcc: all@example.org ({APPLICATION}): failed"
    lines = first.get_content().splitlines()
    assert lines[:3] == ["exit code 3", "next line", ""]
    assert "name: mnist Bcc: all@example.org" in lines


@pytest.mark.parametrize(("answer", "is_final"), [("451 later", False), ("554 no", True)])
def test_a_permanent_refusal_of_a_mail_server_is_not_retried(answer: str, is_final: bool) -> None:
    port = free_port()
    with mail_server(lambda _: answer, port=port), pytest.raises(NotDelivered) as caught:
        deliver(settings(mail=mail_to(port)), MAIL, event())
    assert caught.value.final is is_final


def test_the_password_is_sent_only_over_the_requested_tls() -> None:
    port = free_port()
    logins: list[tuple[bytes, bytes]] = []
    with mail_server(lambda _: "250 OK", port=port, logins=logins):
        deliver(settings(mail=mail_to(port, user="tony", password="pass")), MAIL, event())
        assert logins == [(b"tony", b"pass")]
        # This one has no TLS: nothing is sent to it then.
        with pytest.raises(NotDelivered, match="SMTPNotSupportedError"):
            deliver(settings(mail=mail_to(port, security=START_TLS)), MAIL, event())


def test_an_invalid_mail_counts_as_not_delivered() -> None:
    """A text that no header takes ends no thread that sends."""
    port = free_port()
    with mail_server(lambda _: "250 OK", port=port), pytest.raises(NotDelivered, match="ValueError"):
        deliver(settings(mail=mail_to(port)), MAIL, replace(event(FAILED), id="a\nb"))


def test_a_mail_server_that_hangs_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "TIMEOUT_S", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        with pytest.raises(NotDelivered) as caught:
            deliver(settings(mail=mail_to(silent.getsockname()[1])), MAIL, event())
        assert not caught.value.final


def test_a_command_gets_the_event_on_its_standard_input(tmp_path: Path) -> None:
    words = (sys.executable, "-c", "import sys, os; open(sys.argv[1], 'w').write(os.environ['DLAPP_EVENT'] + input())")
    deliver(settings(command=(*words, str(tmp_path / "out"))), COMMAND, event())
    text = (tmp_path / "out").read_text()
    assert json.loads(text.removeprefix("running"))["id"] == event().id
    for code, is_final in ((1, False), (127, True)):
        with pytest.raises(NotDelivered) as caught:
            deliver(settings(command=("/bin/sh", "-c", f"exit {code}")), COMMAND, event())
        assert caught.value.final is is_final


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "COMMAND_TIMEOUT_S", 0.2)
    with pytest.raises(NotDelivered, match="took longer"):
        deliver(settings(command=("/bin/sleep", "60")), COMMAND, event())


@pytest.mark.parametrize("text", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: ", b"220 "], ids=["webhook", "mail"])
def test_a_server_that_drips_its_answer_is_given_up_before_it_is_whole(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send a byte each 0.02 s, with 400 of them after the beginning, in 8 s; the limit is 0.5 s here, 20 and 60 s
    otherwise. No read takes as long as its own limit."""
    monkeypatch.setattr("dlapp.notifications.webhook._ANSWER_S", 0.5)
    monkeypatch.setattr("dlapp.notifications.smtp._ANSWERS_S", 0.5)
    sent = bytearray()
    whole = text + bytes(400).replace(b"\0", b"x") + b"\r\n\r\n"

    def drip(server: socket.socket) -> None:
        with contextlib.suppress(OSError), server.accept()[0] as peer:
            for byte in whole:
                peer.sendall(bytes([byte]))
                sent.append(byte)
                time.sleep(0.02)

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        thread = threading.Thread(target=drip, args=(server,), name="drip", daemon=True)
        thread.start()
        port = server.getsockname()[1]
        channel = MAIL if text.startswith(b"220") else WEBHOOK
        hook = Webhook(f"http://127.0.0.1:{port}/{SECRET}")
        with pytest.raises(NotDelivered) as caught:
            deliver(settings(webhook=hook, mail=mail_to(port)), channel, event())
        thread.join()
    assert not caught.value.final
    assert 0 < len(sent) < len(whole)


# ---- the sender ----


class MemoryFile:
    """An outbox file; ``fails``: it cannot be written."""

    def __init__(self, data: bytes | None = None) -> None:
        self.data, self.fails = data, False

    def read(self) -> bytes | None:
        return self.data

    def write(self, data: bytes) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        self.data = data

    def remove(self) -> None:
        self.data = None

    @property
    def outbox(self) -> Outbox:
        return from_bytes(self.data)


def fresh(kind: str = "running") -> Notification:
    return event(kind, at_ms=clock.now_ms())


def test_a_recovering_server_gets_each_event_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[str] = []
    is_given_up = threading.Event()

    def answer(request: Request) -> Answer | None:
        tries.append(json.loads(request.body)["id"])
        match len(tries):
            case 1:
                return Answer(503)
            case 2:
                return None  # cut off without an answer
            case 3:
                is_given_up.wait(120.0)
        return Answer()

    def pauses_of_hanging() -> Iterator[float]:
        """Pauses, each of which is taken before a try: of a server that hangs the third time."""
        monkeypatch.setattr(channels, "TIMEOUT_S", 120.0)
        yield 0.01
        yield 0.01
        monkeypatch.setattr(channels, "TIMEOUT_S", 0.3)
        yield 0.01
        wait_for("the server has the third try", lambda: len(tries) == 3)
        monkeypatch.setattr(channels, "TIMEOUT_S", 120.0)
        is_given_up.set()
        yield 0.01

    file = MemoryFile()
    with http_server(answer) as url:
        sender = Sender(settings(webhook=Webhook(url)), file, pauses=pauses_of_hanging)
        sender.enqueue(fresh())
        sender.enqueue(fresh(FAILED))
        assert sender.wait(120.0)
    assert tries == [fresh().id] * 4 + [fresh(FAILED).id]
    assert file.outbox == Outbox((fresh().id, fresh(FAILED).id), ())
    assert sender.close(120.0)
    assert file.data is None


def test_an_event_is_recorded_before_it_is_sent_and_the_next_process_sends_it() -> None:
    file, recorded = MemoryFile(), []

    def answer(_: Request) -> Answer:
        recorded.append([item.notification.id for item in file.outbox.pending])
        return Answer(503)

    with http_server(answer) as url:
        dies = Sender(settings(webhook=Webhook(url)), file, pauses=lambda: iter([3600.0]))
        dies.enqueue(fresh())
        wait_for("the first try", lambda: recorded)
    assert recorded == [[fresh().id]]
    taken: list[str] = []

    def takes(request: Request) -> Answer:
        taken.append(request.headers["X-Dlapp-Event-Id"])
        return Answer()

    with http_server(takes) as url:
        lives = Sender(settings(webhook=Webhook(url)), MemoryFile(file.data))
        lives.begin()
        lives.enqueue(fresh())  # found again: the record says that it was taken
        assert lives.wait(120.0)
    assert taken == [fresh().id]


def test_one_channel_that_hangs_does_not_keep_the_other_from_its_events() -> None:
    sent: list[str] = []
    file = MemoryFile()

    def deliver_one(_: Settings, channel: str, one: Notification) -> None:
        if channel == WEBHOOK:
            raise NotDelivered("away")
        sent.append(one.id)

    both = settings(webhook=Webhook("http://127.0.0.1:1"), mail=mail_to(1))
    sender = Sender(both, file, pauses=lambda: iter([3600.0]), deliver=deliver_one)
    sender.enqueue(fresh())
    sender.enqueue(fresh(FAILED))
    wait_for("both mails", lambda: sent == [fresh().id, fresh(FAILED).id])
    wait_for("their record", lambda: [item.channels for item in file.outbox.pending] == [(WEBHOOK,), (WEBHOOK,)])
    assert not sender.wait(0.0)


def test_unselected_events_are_not_sent_and_undeliverable_ones_stay() -> None:
    file, sent = MemoryFile(), []
    both = settings(mail=mail_to(1), command=("/bin/true",))
    sender = Sender(both, file, channels={MAIL}, deliver=lambda _, channel, one: sent.append((channel, one.id)))
    sender.enqueue(fresh("hang"))
    sender.enqueue(fresh(FAILED))
    assert sender.wait(120.0)
    assert sent == [(MAIL, fresh(FAILED).id)]
    assert not sender.close(1.0)
    assert [(item.notification.id, item.channels) for item in file.outbox.pending] == [(fresh(FAILED).id, (COMMAND,))]


def test_events_are_sent_also_where_they_cannot_be_recorded() -> None:
    file, sent = MemoryFile(to_bytes(Outbox())), []
    file.fails = True
    sender = Sender(settings(mail=mail_to(1)), file, deliver=lambda _, _channel, one: sent.append(one.id))
    sender.enqueue(fresh(FAILED))
    wait_for("it is sent", lambda: sent == [fresh(FAILED).id])
