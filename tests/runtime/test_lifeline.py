"""The FIFO between a task and its payload, without either."""

from __future__ import annotations

import os
import select
from pathlib import Path

from dlapp.runtime.lifeline import EndNotice, Lifeline
from tests.runtime.driver import has_holder


def test_the_payload_reads_its_message_visibly(tmp_path: Path) -> None:
    line = Lifeline(str(tmp_path / "life"))
    assert not line.is_held_by_payload
    reader = os.open(tmp_path / "life", os.O_RDONLY)
    assert os.read(reader, 100) == b"go\n"
    assert line.is_held_by_payload
    assert not line.is_payload_gone
    os.close(reader)
    assert line.is_payload_gone
    line.close()


def test_the_payload_s_end_wakes_a_poll(tmp_path: Path) -> None:
    line = Lifeline(str(tmp_path / "life"))
    reader = os.open(tmp_path / "life", os.O_RDONLY)
    os.read(reader, 100)
    assert line.is_held_by_payload
    poll = select.poll()
    for fd, events in line.watched_fds():
        poll.register(fd, events)
    assert poll.poll(0) == []
    os.close(reader)
    assert poll.poll(120_000)
    line.close()


def test_messages_of_the_task_arrive_and_its_end_is_end_of_file(tmp_path: Path) -> None:
    line = Lifeline(str(tmp_path / "life"))
    reader = os.open(tmp_path / "life", os.O_RDONLY)
    line.send("term")
    assert os.read(reader, 100) == b"go\nterm\n"
    assert line.is_held_by_payload
    line.close()
    assert os.read(reader, 100) == b""
    os.close(reader)


def test_a_started_payload_that_reads_no_further_message_has_started(tmp_path: Path) -> None:
    line = Lifeline(str(tmp_path / "life"))
    reader = os.open(tmp_path / "life", os.O_RDONLY)
    line.send("kill")
    assert not line.is_held_by_payload
    assert os.read(reader, 3) == b"go\n"
    assert line.is_held_by_payload
    os.close(reader)
    assert line.is_payload_gone
    line.close()


def test_a_reader_after_the_tasks_end_gets_no_message(tmp_path: Path) -> None:
    line = Lifeline(str(tmp_path / "life"))
    line.close()
    reader = os.open(tmp_path / "life", os.O_RDONLY | os.O_NONBLOCK)
    assert has_holder(str(tmp_path / "life"))
    assert os.read(reader, 100) == b""
    os.close(reader)
    assert not has_holder(str(tmp_path / "life"))


def test_a_missing_lifeline_has_no_holder(tmp_path: Path) -> None:
    assert not has_holder(str(tmp_path / "none"))


def test_sending_without_a_reader_is_no_error(tmp_path: Path) -> None:
    line = Lifeline(str(tmp_path / "life"))
    reader = os.open(tmp_path / "life", os.O_RDONLY)
    os.read(reader, 100)
    assert line.is_held_by_payload
    os.close(reader)
    line.send("term")
    line.close()
    line.send("term")


def test_a_notice_wakes_a_poll_and_is_taken_once_and_more_of_them_are_not_taken_at_once(tmp_path: Path) -> None:
    now_s = 100.0
    notice = EndNotice(str(tmp_path / "ending"), clock=lambda: now_s)
    assert not notice.poll()
    with open(tmp_path / "ending", "r+b", buffering=0) as wrapper:
        wrapper.write(b"end\n")
        poll = select.poll()
        for fd, events in notice.watched_fds():
            poll.register(fd, events)
        assert poll.poll(120_000)
        assert notice.poll()
        wrapper.write(b"end\n" * 1000)
        assert (notice.poll(), notice.watched_fds()) == (False, [])
        now_s += 1.0
        assert notice.watched_fds()
        assert notice.poll()
    notice.close()
    assert not notice.poll()
    assert notice.watched_fds() == []
