"""The outbox: nothing is taken twice or forgotten, and nobody makes it grow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.config import load_config
from dlapp.errors import ConfigError
from dlapp.notifications.outbox import MAX_AGE_MS, MAX_EVENTS, Outbox, from_bytes, is_expired, to_bytes
from dlapp.notifications.settings import settings_of
from dlapp.values.ids import ApplicationId
from dlapp.values.notification import DONE, EVENTS, HANG, RUNNING, Notification, id_of

APPLICATION = ApplicationId(1_700_000_000_000, 42)


def event(kind: str = RUNNING, key: str = "", text: str = "text", at_ms: int = 1_700_000_000_000) -> Notification:
    return Notification(
        id=id_of(APPLICATION, kind, key),
        event=kind,
        at_ms=at_ms,
        application_id=APPLICATION,
        appname="mnist",
        username="tony",
        text=text,
    )


def test_an_event_that_was_taken_is_not_taken_again_also_after_it_was_delivered() -> None:
    outbox = Outbox().add(event(), ("mail",))
    assert outbox.add(event(text="found by the next attempt"), ("mail",)) is outbox
    delivered = outbox.without(event().id, "mail")
    assert delivered.pending == ()
    assert delivered.add(event(), ("mail",)) is delivered


def test_an_event_sent_by_one_channel_stays_for_the_others() -> None:
    outbox = Outbox().add(event(), ("webhook", "mail")).without(event().id, "webhook")
    assert [(one.id, channel) for one, channel in outbox.for_channels(("webhook", "mail"))] == [(event().id, "mail")]
    assert outbox.for_channels(("webhook",)) == []


def test_after_many_events_only_the_end_is_taken() -> None:
    outbox = Outbox()
    for number in range(MAX_EVENTS + 10):
        outbox = outbox.add(event(HANG, str(number)), ("mail",))
    assert len(outbox.taken) == MAX_EVENTS
    assert outbox.add(event(DONE), ("mail",)).taken[-1] == id_of(APPLICATION, DONE)


def test_expired_events_are_dropped() -> None:
    outbox = Outbox().add(event(), ("mail",))
    late_ms = event().at_ms + MAX_AGE_MS + 1
    assert is_expired(event(), late_ms)
    assert outbox.without_expired(late_ms) == Outbox(outbox.taken, ())
    assert outbox.without_expired(late_ms - 1) == outbox


def test_an_outbox_is_read_back_from_its_file() -> None:
    outbox = Outbox().add(event(), ("webhook", "mail"))
    assert from_bytes(to_bytes(outbox)) == outbox
    assert from_bytes(None) == Outbox()


@given(st.one_of(st.binary(max_size=200), st.sampled_from([b"{}", b"[]", b'{"taken": 3}', b'{"pending": [{}]}'])))
def test_an_invalid_file_is_an_empty_outbox(data: bytes) -> None:
    assert from_bytes(data) == Outbox()


def test_settings_come_from_private_files(tmp_path: Path) -> None:
    hook, password = tmp_path / "hook", tmp_path / "password"
    hook.write_text("https://hooks.example.org/T0/secret\nAuthorization: Bearer abc\n\n")
    password.write_text("tony:pass:word\n")
    hook.chmod(0o600)
    password.chmod(0o600)
    options = {
        "notify.webhook": str(hook),
        "notify.mail": "tony@example.org, ops@example.org",
        "notify.smtp": "mail.example.org:587",
        "notify.smtp_security": "starttls",
        "notify.smtp_credentials": str(password),
    }
    environ = {"HOME": str(tmp_path)}
    found = settings_of(load_config(options, environ), None)
    assert found is not None
    assert found.webhook is not None
    assert found.mail is not None
    assert found.events == ("failed", "killed", "done")
    assert (found.webhook.url, found.webhook.headers) == (
        "https://hooks.example.org/T0/secret",
        {"Authorization": "Bearer abc"},
    )
    assert (found.mail.to, found.mail.sender) == (("tony@example.org", "ops@example.org"), "tony@example.org")
    assert (found.mail.user, found.mail.password) == ("tony", "pass:word")
    assert not any(secret in repr(found) for secret in ("secret", "abc", "pass:word"))
    hook.chmod(0o640)
    with pytest.raises(ConfigError, match="may be read by others"):
        settings_of(load_config(options, environ), None)
    hook.chmod(0o600)
    for text, refused in (("hooks.example.org", "line 1 of"), ("https://hooks.example.org\nno header", "line 2 of")):
        hook.write_text(text)
        with pytest.raises(ConfigError, match=refused):
            settings_of(load_config(options, environ), None)
    hook.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        settings_of(load_config(options, environ), None)


def test_without_a_channel_or_an_event_there_are_no_settings(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert settings_of(load_config({}, environ), None) is None
    with_mail = load_config({"notify.mail": "tony@example.org"}, environ)
    assert settings_of(with_mail, ()) is None
    chosen = settings_of(with_mail, ("hang",))
    assert chosen is not None
    assert (chosen.events, chosen.channels) == (("hang",), ("mail",))


def test_a_password_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    options = {"notify.mail": "tony@example.org", "notify.smtp_credentials": str(tmp_path / "password")}
    with pytest.raises(ConfigError, match=r"set notify\.smtp_security"):
        settings_of(load_config(options, {"HOME": str(tmp_path)}), EVENTS)
