"""The side index of stdout and stderr says when a byte was written, and stays small."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.system.logs import log_times
from dlapp.system.logs.log_times import MAX_BYTES, LogTimes, LogTimesWriter, thinned

BEGIN_MS = 1_700_000_000_000
WEEK_MS = 7 * 86_400_000


def test_a_byte_has_the_time_of_the_first_line_in_which_its_file_is_longer(tmp_path: Path) -> None:
    writer = LogTimesWriter(str(tmp_path / "dlapp.times"))
    for time_ms, sizes in ((1000, (5, 0)), (1100, (5, 0)), (1200, (5, 3)), (1300, (9, 3))):
        writer.record(time_ms, sizes)
    writer.close()
    data = (tmp_path / "dlapp.times").read_bytes()
    assert data == b"1000 5 0\n1200 5 3\n1300 9 3\n", "a line for each growth"
    times = LogTimes(data)
    assert [times.of_byte("stdout", offset) for offset in (0, 4, 5, 8, 9)] == [
        (1000, 5),
        (1000, 5),
        (1300, 9),
        (1300, 9),
        None,
    ]
    assert times.of_byte("stderr", 2) == (1200, 3)


def test_times_do_not_decrease_after_a_clock_change(tmp_path: Path) -> None:
    writer = LogTimesWriter(str(tmp_path / "dlapp.times"))
    writer.record(2000, (1, 0))
    writer.record(1000, (2, 0))
    writer.record(2100, (1, 0))  # the program truncated its log
    writer.close()
    assert (tmp_path / "dlapp.times").read_bytes() == b"2000 1 0\n2000 2 0\n"


@pytest.mark.parametrize(
    "line",
    [
        b"1100 3 0",
        b"900 9 9",
        b"-1 9 9",
        b"9 9",
        b"1100 9 9 9",
        b"1100 x 9",
        b"9" * 30 + b" 9 9",
        b"\xff",
        b"",
        b"1e3 9 9",
    ],
)
def test_invalid_and_decreasing_lines_are_skipped(line: bytes) -> None:
    times = LogTimes(b"1000 5 5\n" + line + b"\n1200 9 9\n")
    assert times.of_byte("stdout", 5) == (1200, 9)


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read_as_an_index(data: bytes) -> None:
    for text in (data, b"1000 5 5\n" + data):
        found = LogTimes(text).of_byte("stdout", 0)
        assert found is None or found[1] > 0
        thinned(text, 10)


def test_a_line_that_is_not_complete_does_not_count() -> None:
    assert LogTimes(b"1000 5 5\n1100 12").of_byte("stdout", 5) is None


@pytest.mark.slow
def test_a_run_of_three_weeks_stays_below_the_bound_and_keeps_its_latest_lines(tmp_path: Path) -> None:
    path = tmp_path / "dlapp.times"
    writer = LogTimesWriter(str(path))
    # Three weeks with output every 20 s, then ten minutes with output all the time.
    noted = [BEGIN_MS + offset_ms for offset_ms in range(0, 3 * WEEK_MS, 20_000)]
    noted += [BEGIN_MS + 3 * WEEK_MS + offset_ms for offset_ms in range(0, 600_000, 100)]
    for number, time_ms in enumerate(noted, 1):
        writer.record(time_ms, (number * 1000, number * 50))
        assert writer._end <= MAX_BYTES
    writer.close()
    assert os.path.getsize(path) <= MAX_BYTES
    times = LogTimes(path.read_bytes())
    last = len(noted)
    assert all(
        times.of_byte("stdout", number * 1000 - 1) == (noted[number - 1], number * 1000)
        for number in range(last - 6000, last)
    )
    errors = [
        found[0] - noted[number] for number in range(0, last, 97) if (found := times.of_byte("stdout", number * 1000))
    ]
    assert min(errors) >= 0, "times are upper bounds"
    assert max(errors) < 15 * 60_000


def test_an_index_that_a_payload_filled_with_other_bytes_does_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "dlapp.times"
    writer = LogTimesWriter(str(path))
    writer._end = MAX_BYTES - 5
    path.write_bytes(b"x" * (3 * MAX_BYTES))
    writer.record(1000, (1, 1))
    writer.record(1100, (2, 1))
    writer.close()
    assert path.read_bytes() == b"1000 1 1\n1100 2 1\n"


@pytest.mark.slow
def test_a_reader_in_the_middle_of_thinning_sees_no_wrong_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dlapp.times"
    seen: list[bytes] = []
    truncate = os.ftruncate

    def look(fd: int, size: int) -> None:
        seen.append(path.read_bytes())
        truncate(fd, size)

    monkeypatch.setattr(log_times, "MAX_BYTES", 2000)
    monkeypatch.setattr(os, "ftruncate", look)
    monkeypatch.setattr(log_times, "thinned", lambda data: thinned(data, 2000))
    writer = LogTimesWriter(str(path))
    for number in range(1, 500):
        writer.record(BEGIN_MS + number * 100, (number, number))
    writer.close()
    assert len(seen) > 3
    for data in seen:
        for offset in range(500):
            found = LogTimes(data).of_byte("stdout", offset)
            assert found is None or BEGIN_MS + found[1] * 100 == found[0]
