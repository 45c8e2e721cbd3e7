"""Notifications of whole applications: from the ApplicationMaster, and from others after its death."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from email.message import EmailMessage
from pathlib import Path

import pytest

from dlapp import __main__ as main
from tests.applications import launch, processes, properties, run, status, wait_for
from tests.end_to_end.faults.test_kill_matrix import kill
from tests.engines import Engine
from tests.notifications.test_channels import free_port
from tests.services.http.http_server import Answer, Request, http_server
from tests.services.http.webhook import Hook
from tests.services.mail_server import mail_server

END_S = 120.0


@pytest.mark.parametrize("engine", ["local", pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
@pytest.mark.slow
def test_an_event_of_a_killed_applicationmaster_is_delivered_by_the_next(
    hook: Hook, engine: Engine, tmp_path: Path
) -> None:
    hook.is_up, go = False, tmp_path / "go"
    script = f"until [ -e {go} ]; do sleep 0.05; done; exit 3"
    file = properties(tmp_path, script, application={"notify": "all"})
    application = launch(file)
    wait_for("a try", lambda: "running" in hook.tries(application), END_S)
    engine.kill_master(application)
    hook.is_up = True
    wait_for("both events", lambda: set(hook.events(application)) == {"running", "restarted"}, END_S)
    go.touch()
    wait_for("its end", lambda: hook.events(application)[-1] == "failed", END_S)
    last = hook.received(application)[-1]
    assert (last["application_id"], last["final_status"]) == (application, "FAILED")
    assert "exit code 3" in str(last["text"])
    assert "secret" not in json.dumps(hook.received(application))


@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
@pytest.mark.slow
def test_on_yarn_the_next_command_delivers_undelivered_notifications(
    hook: Hook, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_YARN_AM_ATTEMPTS", "1")
    hook.is_up = False
    application = launch(properties(tmp_path, "sleep 600", application={"notify": "running, failed"}))
    wait_for("a try", lambda: "running" in hook.tries(application), END_S)
    engine.kill_master(application)
    wait_for("its end", lambda: status(application)["state"] == "FAILED", END_S)
    assert hook.received(application) == []
    hook.is_up = True

    def look() -> bool:
        assert run("dlapp-list").code == 0
        return set(hook.events(application)) == {"running", "failed"}

    wait_for("both events", look, END_S)

    def comes_no_more() -> bool:
        count = len(hook.received(application))
        assert run("dlapp-list").code == 0
        return len(hook.received(application)) == count

    # A command that was too slow has delivered them, but not removed them.
    wait_for("no event any more", comes_no_more, END_S)


def test_on_one_machine_the_end_is_delivered_when_the_server_is_back(
    hook: Hook, state_dir: Path, tmp_path: Path
) -> None:
    hook.is_up = False
    application = launch(properties(tmp_path, "exit 3"))
    # Its ApplicationMaster tries it, and then the process that outlives that.
    wait_for("a try", lambda: "failed" in hook.tries(application), END_S)
    wait_for("its end", lambda: status(application)["state"] == "FINISHED", END_S)
    # The process that tries it again is killed, as by a power cut; the user's next command starts another one.
    kill(wait_for("its sender", lambda: [process.pid for process in processes(state_dir) if process.role == "notify"]))
    hook.is_up = True

    def look() -> bool:
        assert run("dlapp-list").code == 0
        return hook.events(application) == ["failed"]

    wait_for("the event", look, END_S)
    wait_for("no process", lambda: not processes(state_dir))
    assert not list(state_dir.glob("*/notify/*"))
    assert not list(state_dir.glob("*/applications/*/notify*.json")), "it holds secrets, and nobody needs it"


def test_an_end_is_posted_once_by_any_number_of_commands(hook: Hook, state_dir: Path, tmp_path: Path) -> None:
    hook.is_up = False
    application = launch(properties(tmp_path, "exit 3"))
    wait_for("its end", lambda: status(application)["state"] == "FINISHED", END_S)
    kill(wait_for("its sender", lambda: [process.pid for process in processes(state_dir) if process.role == "notify"]))
    (mark,) = state_dir.glob("*/notify/*")
    home = mark.parents[1] / "applications" / application
    before = len(hook.tries(application))
    hook.is_up = True
    command = [sys.executable, "-I", "-S", str(main.__file__), "notify", "--home", str(home), "--mark", str(mark)]
    senders = [subprocess.Popen(command) for _ in range(6)]  # as each command does that finds the mark
    for sender in senders:
        sender.wait()
    assert len(hook.tries(application)) == before + 1
    assert hook.events(application) == ["failed"]
    assert not mark.exists()


def test_a_hanging_server_delays_no_end_and_no_mail(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, mails, port = threading.Event(), [], free_port()

    def hang(_: Request) -> Answer:
        hangs.wait(60.0)
        return Answer()

    def take(message: EmailMessage) -> str:
        mails.append(str(message["X-Dlapp-Event-Id"]))
        return "250 OK"

    with http_server(hang) as url, mail_server(take, port=port):
        secret = tmp_path / "hook"
        secret.write_text(url)
        secret.chmod(0o600)
        monkeypatch.setenv("DLAPP_NOTIFY_WEBHOOK", str(secret))
        monkeypatch.setenv("DLAPP_NOTIFY_MAIL", "tony@example.org")
        monkeypatch.setenv("DLAPP_NOTIFY_SMTP", f"127.0.0.1:{port}")
        application = launch(properties(tmp_path, "true", application={"notify": "all"}))
        wait_for("its end", lambda: status(application)["state"] == "FINISHED", END_S)
        # At least once: an ApplicationMaster that ends meanwhile leaves what it was just sending to the next process.
        expected = [f"{application}/running", f"{application}/done"]
        wait_for("both mails", lambda: list(dict.fromkeys(mails)) == expected, END_S)
        hangs.set()
        wait_for("no process", lambda: not processes(state_dir))


@pytest.mark.slow
def test_a_wait_in_the_queue_is_notified_once(
    hook: Hook, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_NOTIFY_WAITING_AFTER", "1s")
    monkeypatch.setenv("DLAPP_LOCAL_MEMORY", "100m")
    go = tmp_path / "go"
    first = launch(properties(tmp_path, f"until [ -e {go} ]; do sleep 0.05; done", name="first"))
    second = launch(properties(tmp_path, "true", name="second", application={"notify": "waiting, done"}))
    wait_for("the event", lambda: hook.events(first, second) == ["waiting"], END_S)
    text = str(hook.received(second)[0]["text"])
    assert first[-4:] in text or "memory" in text
    go.touch()
    wait_for("both ends", lambda: sorted(map(str, hook.events(first, second))) == ["done", "done", "waiting"], END_S)
    assert status(second)["state"] == "FINISHED"
    wait_for("no process", lambda: not processes(state_dir))
