"""Test the notifications of ends and waits that no ApplicationMaster delivers, and the user's commands do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dlapp.cluster.yarn.client.notices import AM_STAYS_S, SENDING, SENDING_MS, CommandNotices
from dlapp.cluster.yarn.client.rest import AppReport, EndedApplication
from dlapp.cluster.yarn.staging import StagingFiles, StagingPaths
from dlapp.config import load_config
from dlapp.errors import DlappError, NotFound
from dlapp.locations import FileInfo
from dlapp.notifications.events import notification_of
from dlapp.notifications.outbox import MAX_AGE_MS, Outbox, from_bytes, to_bytes
from dlapp.notifications.single_try import deliver_pending
from dlapp.system.clock import now_ms
from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.notification import MAIL, QUEUE, WAITING, WEBHOOK, Notification, NotificationSettings, Webhook
from dlapp.values.report import FinalStatus, State
from dlapp.values.serialization import to_json
from dlapp.values.spec import RoleSpec
from tests.am.driving import APPLICATION, submission
from tests.applications import wait_for
from tests.notifications.test_channels import MemoryFile, mail_to, settings
from tests.notifications.test_outbox import event
from tests.services.http.http_server import Answer, Request, http_server

HOME = "hdfs://namenode:8020/user/tony"
OUTBOX = StagingPaths(HOME).outbox(APPLICATION)
MARK = f"{StagingPaths(HOME).all_outboxes}/{SENDING}"


class Files:
    """The part of `StagingFiles` that is used here, in memory: location -> content and time."""

    home = HOME

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, int]] = {}

    def make(self, location: str, mode: int) -> None:
        """Make nothing: directories are where files are."""

    def read(self, location: str, *, max_bytes: int) -> bytes:
        """Return the content of a file."""
        if location not in self.files:
            raise NotFound(location)
        return self.files[location][0]

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        """Write a file; with ``once`` an existing one stays."""
        if once and location in self.files:
            return False
        self.files[location] = data, now_ms()
        return True

    def status(self, location: str) -> FileInfo | None:
        """Return size and time of a file."""
        if location not in self.files:
            return None
        data, at_ms = self.files[location]
        return FileInfo(len(data), at_ms, "tony", 0o600, is_file=True)

    def names(self, location: str) -> list[str]:
        """Return the names of the files of a directory."""
        return [name for name, _, _ in self.entries(location)]

    def remove(self, location: str) -> None:
        """Remove a file."""
        self.files.pop(location, None)

    def entries(self, location: str) -> list[tuple[str, int, int]]:
        """Return name, size and time of the files of a directory."""
        found = {name.removeprefix(f"{location}/"): one for name, one in self.files.items()}
        return [(name, len(data), ms) for name, (data, ms) in found.items() if "/" not in name]

    @property
    def outbox(self) -> Outbox:
        return from_bytes(self.files[OUTBOX][0])


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def received() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def answers() -> list[int]:
    """Return the answers of the webhook, one after the other; then 200."""
    return []


@pytest.fixture
def notices(
    files: Files,
    received: list[dict[str, Any]],
    answers: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CommandNotices]:
    monkeypatch.setattr("dlapp.cluster.yarn.client.notices.DELIVER_S", 120.0)

    def answer(request: Request) -> Answer:
        received.append(json.loads(request.body))
        return Answer(answers.pop(0) if answers else 200)

    with http_server(answer) as url:
        hook = tmp_path / "hook"
        hook.write_text(url)
        hook.chmod(0o600)
        config = load_config({"notify.webhook": str(hook)}, {"HOME": str(tmp_path)})
        yield CommandNotices(config, cast(StagingFiles, files))


def history_record(state: State = State.KILLED, **fields: Any) -> dict[str, Any]:
    content = {
        "view": None,
        "state": state.value,
        "finished_ms": now_ms(),
        "submission": to_json(submission(RoleSpec())),
    }
    return {**content, **fields}


def test_an_end_is_recorded_once_and_delivered_once(
    notices: CommandNotices, files: Files, received: list[dict[str, Any]]
) -> None:
    for _ in range(2):
        notices.record_end(APPLICATION, history_record())
    assert [item.notification.id for item in files.outbox.pending] == [f"{APPLICATION}/killed"]
    for _ in range(2):
        notices.deliver({APPLICATION: EndedApplication(State.KILLED, 60.0)})
    assert [(item["event"], item["final_status"], item["text"]) for item in received] == [
        ("killed", "KILLED", "YARN reports it as KILLED")
    ]
    assert files.files == {}


def test_an_event_sent_by_another_command_is_sent_once(
    notices: CommandNotices, files: Files, received: list[dict[str, Any]]
) -> None:
    notices.record_end(APPLICATION, history_record())
    files.write(MARK, b"", 0o600)
    notices.deliver({APPLICATION: EndedApplication(State.KILLED, 60.0)})
    assert (received, len(files.outbox.pending), MARK in files.files) == ([], 1, True)
    files.remove(MARK)
    notices.deliver({APPLICATION: EndedApplication(State.KILLED, 60.0)})
    assert ([item["event"] for item in received], files.files) == (["killed"], {})


def test_after_a_command_that_was_killed_while_it_sent_a_later_one_sends(
    notices: CommandNotices, files: Files, received: list[dict[str, Any]]
) -> None:
    notices.record_end(APPLICATION, history_record())
    files.files[MARK] = b"", now_ms() - SENDING_MS - 1000
    for _ in range(2):
        notices.deliver({APPLICATION: EndedApplication(State.KILLED, 60.0)})
    assert ([item["event"] for item in received], files.files) == (["killed"], {})


def test_the_mark_of_a_command_that_sends_is_no_notification(notices: CommandNotices, files: Files) -> None:
    files.write(MARK, b"", 0o600)
    assert not notices.is_there_any()
    notices.record_end(APPLICATION, history_record())
    assert notices.is_there_any()


def test_an_attempt_that_is_still_under_way_leaves_the_mark(
    notices: CommandNotices, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlapp.cluster.yarn.client.notices.deliver_pending", lambda *_, **__: False)
    notices.record_end(APPLICATION, history_record())
    notices.deliver({APPLICATION: EndedApplication(State.KILLED, 60.0)})
    assert MARK in files.files


def test_an_applicationmaster_that_may_still_send_is_left_alone(
    notices: CommandNotices, files: Files, received: list[dict[str, Any]]
) -> None:
    notices.record_end(APPLICATION, history_record(State.FAILED))
    notices.deliver({})
    notices.deliver({APPLICATION: EndedApplication(State.FAILED, 1.0)})
    notices.deliver({APPLICATION: EndedApplication(State.FINISHED, AM_STAYS_S - 1)})
    assert (received, len(files.outbox.pending)) == ([], 1)


def test_an_event_that_a_server_cannot_accept_now_is_left_for_the_next_command(
    notices: CommandNotices, files: Files, received: list[dict[str, Any]], answers: list[int]
) -> None:
    notices.record_end(APPLICATION, history_record())
    before = files.files[OUTBOX]
    others = threading.enumerate()
    answers += [503, 200]
    notices.deliver({APPLICATION: EndedApplication(State.KILLED, 60.0)})
    assert (len(received), files.files[OUTBOX]) == (1, before), "it is tried once"
    wait_for(
        "no thread of the delivery",
        lambda: (
            not [
                thread
                for thread in threading.enumerate()
                if thread not in others and thread.name == f"notify-{WEBHOOK}"
            ]
        ),
    )
    notices.deliver({APPLICATION: EndedApplication(State.KILLED, 60.0)})
    assert [item["event"] for item in received] == ["killed", "killed"]
    assert files.files == {}


def test_a_refused_event_is_dropped_with_a_line_on_stderr(
    notices: CommandNotices, files: Files, answers: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    notices.record_end(APPLICATION, history_record())
    answers.append(404)
    notices.deliver({APPLICATION: EndedApplication(State.KILLED, 60.0)})
    assert files.files == {}
    output = capfd.readouterr()
    assert output.out == ""
    assert f"the event {APPLICATION}/killed is given up: the webhook answered 404" in output.err


def test_a_channel_that_hangs_does_not_keep_the_other_from_its_events() -> None:
    hangs, sent = threading.Event(), list[str]()

    def deliver(_: NotificationSettings, channel: str, one: Notification) -> None:
        if channel == WEBHOOK:
            hangs.wait(120)
        sent.append(channel)
        if channel == MAIL and len(sent) == 2:
            hangs.set()

    outbox = Outbox()
    for kind in ("running", "failed"):
        outbox = outbox.add(event(kind, at_ms=now_ms()), (WEBHOOK, MAIL))
    file = MemoryFile(to_bytes(outbox))
    both = settings(webhook=Webhook("http://127.0.0.1:1"), mail=mail_to(1))
    deliver_pending(both, [file], 120.0, deliver=deliver)
    assert sent == [MAIL, MAIL, WEBHOOK, WEBHOOK]
    assert file.data is None


def test_undeliverable_events_are_removed(notices: CommandNotices, files: Files) -> None:
    notices.record_end(APPLICATION, history_record())
    files.files[OUTBOX] = files.files[OUTBOX][0], now_ms() - 3 * MAX_AGE_MS
    notices.deliver({}, ())
    assert files.files == {}


@pytest.mark.parametrize("unfinished", [[APPLICATION], None], ids=["known", "not read"])
def test_the_old_outbox_of_an_application_that_may_not_have_ended_stays(
    notices: CommandNotices, files: Files, unfinished: list[ApplicationId] | None
) -> None:
    notices.record_end(APPLICATION, history_record())
    files.files[OUTBOX] = files.files[OUTBOX][0], now_ms() - 3 * MAX_AGE_MS
    before = dict(files.files)
    notices.deliver({}, unfinished)
    assert files.files == before, "it has the ids of what was sent"


def waiting() -> AppReport:
    """Return the report of an application that has waited for two hours."""
    return AppReport(
        application_id=APPLICATION,
        user="tony",
        name="mnist",
        queue="root.small",
        state=State.ACCEPTED,
        final_status=FinalStatus.UNDEFINED,
        diagnostics="[date] Application is Activated, AM resource limit exceeded. Details : Queue Usage = 1;",
        started_ms=now_ms() - 2 * 3_600_000,
        tags=("project:vision",),
    )


def test_a_wait_is_notified_once_across_commands_and_applicationmaster(
    notices: CommandNotices, files: Files, received: list[dict[str, Any]]
) -> None:
    for _ in range(2):
        notices.deliver_waits([waiting()])
        notices.deliver({}, [APPLICATION])
    (one,) = received
    assert (one["event"], one["username"], one["queue"], one["project"]) == ("waiting", "tony", "small", "vision")
    assert one["text"].startswith("it has waited for 120 min for YARN to start its ApplicationMaster: ")
    assert "AM resource limit exceeded" in one["text"]
    own = notification_of(submission(RoleSpec()), APPLICATION, WAITING, QUEUE, "of the ApplicationMaster", at_ms=1)
    assert files.outbox.add(own, (WEBHOOK,)).pending == ()
    notices.deliver({APPLICATION: EndedApplication(State.KILLED, 60.0)})
    assert (files.files, len(received)) == ({}, 1)


def test_a_wait_that_a_server_does_not_take_is_left_for_the_next_command(
    notices: CommandNotices, received: list[dict[str, Any]], answers: list[int]
) -> None:
    answers += [503, 200]
    for _ in range(3):
        notices.deliver_waits([waiting()])
    assert [item["id"] for item in received] == [f"{APPLICATION}/waiting/queue"] * 2


def test_an_applicationmaster_that_has_just_started_delivers_its_own_events(
    notices: CommandNotices, files: Files, received: list[dict[str, Any]]
) -> None:
    running = event("running", at_ms=now_ms())
    files.write(OUTBOX, to_bytes(Outbox().add(running, (WEBHOOK,))), 0o600)
    before = dict(files.files)
    notices.deliver_waits([waiting()])
    assert (received, files.files) == ([], before)


def test_an_event_recorded_during_a_delivery_is_not_lost() -> None:
    file = MemoryFile(to_bytes(Outbox().add(event("waiting", at_ms=now_ms()), (WEBHOOK,))))
    later = event("running", at_ms=now_ms())

    def deliver(*_: object) -> None:
        file.write(to_bytes(from_bytes(file.read()).add(later, (WEBHOOK,))))

    deliver_pending(settings(webhook=Webhook("http://127.0.0.1:1")), [file], 120.0, ended=False, deliver=deliver)
    assert [item.notification.id for item in from_bytes(file.data).pending] == [later.id]


def test_a_damaged_outbox_keeps_no_other_wait_from_its_user(
    notices: CommandNotices, files: Files, received: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = files.read

    def refused(location: str, *, max_bytes: int) -> bytes:
        if location != OUTBOX:
            raise DlappError("it is too large")
        return read(location, max_bytes=max_bytes)

    monkeypatch.setattr(files, "read", refused)
    other = replace(waiting(), application_id=ApplicationId(APPLICATION.cluster_timestamp_ms, 7))
    notices.deliver_waits([other, waiting()])
    assert [view["application_id"] for view in received] == [str(APPLICATION)]


@pytest.mark.parametrize("fields", [{"submission": 3}, {"submission": {}}, {"view": {"state": []}}])
def test_damaged_files_are_ignored(fields: dict[str, Any], notices: CommandNotices, files: Files) -> None:
    notices.record_end(APPLICATION, history_record(**fields))
    assert files.files == {}


def test_events_that_the_file_does_not_select_are_not_sent(notices: CommandNotices, files: Files) -> None:
    notices.record_end(APPLICATION, history_record(submission=to_json(submission(RoleSpec(), notify=("done",)))))
    assert files.files == {}
