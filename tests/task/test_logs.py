"""The cap on what a payload prints, and dlapp's own log."""

from __future__ import annotations

import errno
import os
import re
import select
import time
from pathlib import Path

import pytest

from dlapp.runtime.docker.labels import is_task_dead
from dlapp.system.logs.log_times import LogTimesWriter
from dlapp.task import logs
from dlapp.task.logs import LogCap, TaskLog
from tests.open_files import open_files


def test_the_beginning_is_kept_and_writing_continues_at_the_new_end(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    cap = LogCap((str(path),), 10)
    with open(path, "ab", buffering=0) as file:
        file.write(b"0123456789abcdef")
        cap.check()
        file.write(b"more")
        cap.check()
    assert path.read_bytes() == b"0123456789"
    assert cap.cut_message == "stdout cut to 10 bytes (10 or more dropped)"


def test_a_log_within_the_cap_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"0123456789")
    cap = LogCap((str(tmp_path / "stdout"), str(tmp_path / "stderr")), 10)
    cap.check()
    assert (tmp_path / "stdout").read_bytes() == b"0123456789"
    assert cap.cut_message == ""


def test_a_quiet_log_is_polled_seldom_and_the_next_write_wakes_the_cap(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"12345")
    with LogCap((str(path),), 10) as cap:
        often = cap.check()
        assert cap.wake_fd is None, "it grows: only time tells, however often it is written to"
        seldom = cap.check()
        assert often <= 0.02 < 0.5 < seldom
        assert cap.wake_fd is not None
        assert not select.select([cap.wake_fd], [], [], 0)[0]
        with open(path, "ab") as file:
            file.write(b"6")
        assert select.select([cap.wake_fd], [], [], 120)[0]
        assert cap.check() == often
        assert cap.check() == seldom


def test_a_log_far_below_the_cap_is_polled_less_often(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"12345")
    with LogCap((str(path),), 1 << 30) as cap:
        assert 0.2 < cap.check() < 1


def test_times_of_a_growing_log_are_recorded_each_tenth_of_a_second(tmp_path: Path) -> None:
    paths = [tmp_path / "stdout", tmp_path / "stderr"]
    for path in paths:
        path.touch()
    times = LogTimesWriter(str(tmp_path / "times"))
    with LogCap((str(paths[0]), str(paths[1])), 1 << 30, times) as cap:
        assert cap.check() == 1.0
        assert cap.check() == 1.0
        assert (tmp_path / "times").read_bytes() == b""
        paths[1].write_bytes(b"12")
        assert 0.05 <= cap.check() <= 0.1
        paths[0].write_bytes(b"345")
        assert 0.05 <= cap.check() <= 0.1
        assert cap.check() == 1.0
    assert re.fullmatch(rb"\d{13} 0 2\n\d{13} 3 2\n", (tmp_path / "times").read_bytes())


def test_unwritable_times_are_reported_once_and_the_cap_holds(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    messages: list[str] = []
    with LogCap((str(path), str(tmp_path / "stderr")), 10, LogTimesWriter("/dev/full"), messages.append) as cap:
        for size in (5, 8, 20):
            path.write_bytes(b"x" * size)
            cap.check()
    assert messages == ["the times of printed lines cannot be written: [Errno 28] No space left on device"]
    assert path.stat().st_size == 10


def test_without_kernel_watches_logs_are_polled_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> int:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(logs, "watch_writes", refused)
    (tmp_path / "stdout").write_bytes(b"12345")
    with LogCap((str(tmp_path / "stdout"),), 10) as cap:
        assert [cap.check(), cap.check()] == [0.02, 0.02]
        assert cap.wake_fd is None


def test_a_kernel_watch_starts_only_after_an_idle_poll_and_never_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[object] = []

    def watch(paths: object) -> int:
        watched.append(paths)
        return os.eventfd(0, os.EFD_NONBLOCK)

    monkeypatch.setattr(logs, "watch_writes", watch)
    path = tmp_path / "stdout"
    path.write_bytes(b"12345")
    with LogCap((str(path),), 10) as cap:
        cap.check()
        cap.finish()
        assert not watched
    with LogCap((str(path),), 10) as cap:
        cap.check()
        cap.check()
        assert watched == [(str(path),)]


def test_output_printed_before_the_kernel_watch_is_capped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stdout"
    path.touch()

    def watch(_: object) -> int:
        path.write_bytes(b"x" * 20)
        return os.eventfd(0, os.EFD_NONBLOCK)

    monkeypatch.setattr(logs, "watch_writes", watch)
    with LogCap((str(path),), 10) as cap:
        cap.check()
        assert path.stat().st_size == 10


def test_the_log_cap_leaves_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "stdout").touch()
    before = open_files()
    with LogCap((str(tmp_path / "stdout"),), 10) as cap:
        cap.check()
    with LogCap((str(tmp_path / "none"),), 10) as cap:
        cap.check()
    assert not open_files() - before


def test_a_log_records_that_its_task_is_alive(tmp_path: Path) -> None:
    assert is_task_dead(str(tmp_path / "none"))
    log = TaskLog(str(tmp_path / "dlapp.log"))
    assert not is_task_dead(str(tmp_path))
    log.write("two\nlines")
    log.close()
    assert is_task_dead(str(tmp_path))
    first, second = (tmp_path / "dlapp.log").read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO two", first)
    assert second == "    lines"


def test_a_log_line_on_a_full_disk_is_dropped_without_an_error(tmp_path: Path) -> None:
    path = tmp_path / "dlapp.log"
    log = TaskLog(str(path))
    kept, full = os.dup(log._fd), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._fd)
    log.write("lost")
    os.dup2(kept, log._fd)
    log.write("kept")
    for fd in (kept, full):
        os.close(fd)
    log.close()
    assert [line.partition("INFO ")[2] for line in path.read_text().splitlines()] == ["kept"]


def test_lines_without_end_are_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MAX_LINES", 10)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = TaskLog(str(tmp_path / "dlapp.log"))
    for number in range(1000):
        log.write(f"line {number}")
    now[0] += 1.0
    log.write("a second later")
    log.close()
    lines = (tmp_path / "dlapp.log").read_text().splitlines()
    assert len(lines) == 12
    assert lines[10].endswith("WARNING 990 lines are left out here")
    assert lines[11].endswith("INFO a second later")
