"""The cap on what a payload prints, and dlapp's own log."""

from __future__ import annotations

from pathlib import Path

from dlapp.runtime.docker import task_is_gone
from dlapp.task.logs import LogCap, TaskLog


def test_the_beginning_is_kept_and_writing_goes_on_at_the_new_end(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    cap = LogCap((str(path),), 10)
    with open(path, "ab", buffering=0) as file:
        file.write(b"0123456789abcdef")
        cap.check()
        file.write(b"more")
        cap.check()
    assert path.read_bytes() == b"0123456789"
    assert cap.told == "stdout cut to 10 bytes (10 or more dropped)"


def test_what_is_within_the_cap_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"0123456789")
    cap = LogCap((str(tmp_path / "stdout"), str(tmp_path / "stderr")), 10)
    cap.check()
    assert (tmp_path / "stdout").read_bytes() == b"0123456789"
    assert cap.told == ""


def test_it_looks_more_often_once_half_of_the_cap_is_used(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"12345")
    cap = LogCap((str(tmp_path / "stdout"),), 10)
    seldom = cap.check()
    (tmp_path / "stdout").write_bytes(b"123456")
    assert cap.check() < seldom


def test_a_log_says_that_its_task_lives(tmp_path: Path) -> None:
    assert task_is_gone(str(tmp_path / "none"))
    log = TaskLog(str(tmp_path / "dlapp.log"))
    assert not task_is_gone(str(tmp_path))
    log.note("two\nlines")
    log.close()
    assert task_is_gone(str(tmp_path))
    first, second = (tmp_path / "dlapp.log").read_text().splitlines()
    assert first.endswith(" two")
    assert second == "    lines"
