"""Test what a process says of its waits."""

from __future__ import annotations

import re
import threading

import pytest

from dlapp.errors import Unreachable
from dlapp.system import waits
from dlapp.system.waits import Wait, call_within

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each wait be shown from its beginning."""
    monkeypatch.setattr(waits, "SHOWN_AFTER_S", 0.0)


@pytest.mark.usefixtures("at_once")
def test_a_wait_is_shown_with_subject_start_deadline_and_reason() -> None:
    with Wait("hdfs://nn", 60.0) as wait:
        assert re.fullmatch(rf"waits for hdfs://nn since {TIME}, until {TIME}", waits.longest_text())
        wait.why = "nn:9870: connection refused"
        assert re.fullmatch(rf"waits for hdfs://nn since {TIME}, until {TIME}: {wait.why}", waits.longest_text())
        wait.longest_s = None
        assert re.fullmatch(rf"waits for hdfs://nn since {TIME}: {wait.why}", waits.longest_text())
    assert waits.longest_text() == ""


@pytest.mark.usefixtures("at_once")
def test_the_longest_of_several_waits_is_shown() -> None:
    with Wait("the outer", None) as outer, Wait("the inner", None):
        assert waits.longest_text().startswith("waits for the outer since")
        outer.renew()
        assert waits.longest_text().startswith("waits for the inner since")


@pytest.mark.usefixtures("at_once")
def test_a_wait_without_a_name_is_not_shown() -> None:
    with Wait("", None):
        assert waits.long_waits() == []


def test_a_wait_that_just_began_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "SHOWN_AFTER_S", 120.0)
    with Wait("a moment", None):
        assert waits.long_waits() == []


@pytest.mark.usefixtures("at_once")
def test_each_longest_wait_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "POLL_INTERVAL_S", 0.001)
    messages: list[str] = []
    changed = threading.Condition()

    def tell(text: str) -> None:
        with changed:
            messages.append(text)
            changed.notify_all()

    with waits.report_waits(tell):
        assert not any(thread.name == "waits" for thread in threading.enumerate())
        for what in ("one", "two"):
            with Wait(what, 30.0), changed:
                assert changed.wait_for(lambda what=what: any(f"for {what} " in text for text in messages), 120)  # type: ignore[misc]
    assert not any(thread.name == "waits" for thread in threading.enumerate())
    assert [text.split()[2] for text in messages] == ["one", "two"]
    assert all(re.search(f"since {TIME}, until {TIME}$", text) for text in messages)


def has_teller() -> bool:
    return any(thread.name == "waits" for thread in threading.enumerate())


@pytest.mark.usefixtures("at_once")
def test_a_repeated_wait_is_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "POLL_INTERVAL_S", 0.001)
    looks = threading.Semaphore(0)
    found = waits.long_waits

    def look() -> list[Wait]:
        looks.release()
        return found()

    monkeypatch.setattr(waits, "long_waits", look)
    messages: list[str] = []
    with waits.report_waits(messages.append):
        wait = Wait("hdfs://nn", None)
        for number in (1, 2):
            with wait:
                for _ in range(3 + looks._value):
                    assert looks.acquire(timeout=60)
                assert len(messages) == number
            for _ in range(3 + looks._value):
                assert looks.acquire(timeout=60)


def test_no_thread_polls_waits_while_a_process_forks() -> None:
    with waits.report_waits(lambda _: None), Wait("the outer", None):
        assert has_teller()
        with waits.paused():
            assert not has_teller()
            with Wait("the inner", None):
                assert not has_teller()
        assert has_teller()
    assert not has_teller()


def test_a_process_without_threads_waits_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with waits.report_waits(lambda _: None), Wait("hdfs://nn", None):
        assert not has_teller()
    with waits.report_waits(lambda _: None), Wait("hdfs://nn", None), waits.paused():
        pass


def test_a_call_that_hangs_is_left_after_its_time_limit() -> None:
    """Call a function that returns, one that raises ValueError, and one that hangs, for which 0.1 s are allowed."""
    over = threading.Event()
    assert call_within(60.0, lambda: 7, lambda: "hangs") == 7
    with pytest.raises(ValueError, match="wrong"):
        call_within(60.0, lambda: int("wrong"), lambda: "hangs")
    with pytest.raises(Unreachable, match=r"^hangs$"):
        call_within(0.1, over.wait, lambda: "hangs")
    over.set()
