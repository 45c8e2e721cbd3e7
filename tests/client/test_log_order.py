"""stdout and stderr of a container are merged in the order in which they were written."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dlapp.client import logs
from dlapp.client.log_order import in_time_order
from dlapp.client.logs import LineMerger, read_logs, time_text
from dlapp.cluster import LOG_NAMES
from dlapp.cluster.engine import LogFiles
from dlapp.system.logs.log_times import LogTimes
from dlapp.values.ids import ApplicationId, ContainerId

APP = ApplicationId(1700000000000, 1)


def log(directory: Path) -> LogFiles:
    files = {name: f"file://{directory}/{name}" for name in LOG_NAMES}
    return LogFiles(container_id=ContainerId(APP, 1, 2), role="worker", role_index=0, index=0, files=files)


def write(directory: Path, stdout: str, stderr: str, times: str | None) -> None:
    for name, text in (("stdout", stdout), ("stderr", stderr), ("dlapp.times", times)):
        if text is not None:
            (directory / name).write_text(text)


def merged(directory: Path, **options: object) -> str:
    pieces = read_logs(lambda: (True, [log(directory)]), **options)  # type: ignore[arg-type]
    return b"".join(LineMerger().merged(pieces)).decode()


def test_lines_of_both_streams_are_in_the_order_of_the_index(tmp_path: Path) -> None:
    write(tmp_path, "one\nthree\n", "two\nfour", "1000 4 0\n1100 4 4\n1200 10 4\n1300 10 8\n")
    assert merged(tmp_path) == "[0] one\n[0 err] two\n[0] three\n[0 err] four\n"
    pieces = list(read_logs(lambda: (True, [log(tmp_path)])))
    assert [(piece.stream, piece.data, piece.time_ms) for piece in pieces] == [
        ("stdout", b"one\n", 1000),
        ("stderr", b"two\n", 1100),
        ("stdout", b"three\n", 1200),
        ("stdout", b"", 1200),
        ("stderr", b"four", 1300),
        ("stderr", b"", 1300),
    ]


def test_without_an_index_stdout_precedes_stderr(tmp_path: Path) -> None:
    write(tmp_path, "one\nthree\n", "two\n", None)
    assert merged(tmp_path) == "[0] one\n[0] three\n[0 err] two\n"


def test_something_else_in_the_place_of_the_index_is_no_index(tmp_path: Path) -> None:
    write(tmp_path, "one\nthree\n", "two\n", None)
    (tmp_path / "dlapp.times").symlink_to("/dev/zero")
    assert merged(tmp_path) == "[0] one\n[0] three\n[0 err] two\n"


def test_lines_missing_from_the_index_come_last(tmp_path: Path) -> None:
    write(tmp_path, "one\nlater\n", "two\n", "1000 4 0\n1100 4 4\n")
    assert merged(tmp_path) == "[0] one\n[0 err] two\n[0] later\n"


def test_the_last_lines_are_ordered_too(tmp_path: Path) -> None:
    write(tmp_path, "one\nthree\n", "two\nfour\n", "1000 4 0\n1100 4 4\n1200 10 4\n1300 10 9\n")
    pieces = read_logs(lambda: (True, [log(tmp_path)]), opened=logs.Logs(1))
    assert b"".join(LineMerger().merged(pieces)).decode() == "[0] three\n[0 err] four\n"


def test_a_single_stream_has_times_if_requested(tmp_path: Path) -> None:
    write(tmp_path, "one\nthree\n", "two\n", "1000 4 0\n1100 4 4\n1200 10 4\n")
    look = lambda: (True, [log(tmp_path)])  # noqa: E731
    assert [item.time_ms for item in read_logs(look, streams=["stdout"], times=True)] == [1000, 1200, 1200]
    assert [item.time_ms for item in read_logs(look, streams=["stdout"])] == [None, None]


def test_following_waits_one_poll_for_the_times_of_new_lines(tmp_path: Path) -> None:
    def world() -> Iterator[bool]:
        write(tmp_path, "", "", "")
        yield False
        write(tmp_path, "two\n", "one\n", "")  # the task has not looked yet
        yield False
        write(tmp_path, "two\n", "one\nthree\n", "1000 0 4\n1100 4 4\n")
        yield False
        yield False
        write(tmp_path, "two\nfive\n", "one\nthree\nfour\n", "1000 0 4\n1100 4 4\n1300 4 15\n1400 9 15\n")
        yield True

    steps = world()
    shown: list[tuple[str, bytes, int | None]] = []
    turns: list[int] = []
    for piece in read_logs(
        lambda: (next(steps), [log(tmp_path)]), follow=True, pause=lambda _: turns.append(len(shown))
    ):
        shown.append((piece.stream, piece.data, piece.time_ms))
    assert shown == [
        ("stderr", b"one\n", 1000),
        ("stdout", b"two\n", 1100),
        ("stderr", b"three\n", None),  # no time at the second look either: it is shown all the same
        ("stderr", b"four\n", 1300),
        ("stderr", b"", 1300),
        ("stdout", b"five\n", 1400),
        ("stdout", b"", 1400),
    ]
    assert turns == [0, 0, 2, 3]


def test_following_without_an_index_does_not_wait(tmp_path: Path) -> None:
    write(tmp_path, "one\n", "two\n", None)
    steps = iter([False, True])
    turns: list[int] = []
    shown: list[bytes] = []
    for piece in read_logs(
        lambda: (next(steps), [log(tmp_path)]), follow=True, pause=lambda _: turns.append(len(shown))
    ):
        shown.append(piece.data)
    assert turns == [2]


def test_a_pause_gets_the_number_of_empty_reads(tmp_path: Path) -> None:
    def world() -> Iterator[bool]:
        write(tmp_path, "one\n", "", None)
        yield from [False, False, False]
        write(tmp_path, "one\ntwo\n", "", None)
        yield from [False, False, True]

    steps, quiet = world(), list[int]()
    shown = [item.data for item in read_logs(lambda: (next(steps), [log(tmp_path)]), follow=True, pause=quiet.append)]
    assert b"".join(shown) == b"one\ntwo\n"
    assert quiet == [0, 1, 2, 0, 1]


@given(
    st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=9)), max_size=30),
    st.lists(st.integers(1, 20), max_size=30),
    st.integers(0, 30),
)
def test_every_byte_appears_once_in_writing_order(
    writes: list[tuple[str, bytes]], cuts: list[int], sampled: int
) -> None:
    content = {"stdout": b"", "stderr": b""}
    index = b""
    for number, (stream, data) in enumerate(writes):
        content[stream] += data
        if number < sampled:
            index += b"%d %d %d\n" % (number + 1, len(content["stdout"]), len(content["stderr"]))

    def cut(data: bytes) -> Iterator[tuple[int, bytes]]:
        places = [0, *itertools.takewhile(lambda offset: offset < len(data), itertools.accumulate(cuts)), len(data)]
        return iter([(a, data[a:b]) for a, b in itertools.pairwise(places) if a < b])

    found = list(in_time_order({name: cut(data) for name, data in content.items()}, lambda: LogTimes(index)))
    for stream, data in content.items():
        assert b"".join(item.data for item in found if item.stream == stream) == data
        assert sum(item.stream == stream and not item.data for item in found) == 1
    known = [(item.stream, item.data) for item in found if item.time_ms is not None and item.data]
    joined = [
        (stream, b"".join(item[1] for item in group))
        for stream, group in itertools.groupby(known, lambda item: item[0])
    ]
    wanted = [
        (stream, b"".join(item[1] for item in group))
        for stream, group in itertools.groupby(writes[:sampled], lambda item: item[0])
    ]
    assert joined == wanted


def test_times_have_tenths_of_a_second_and_unknown_ones_a_dash() -> None:
    assert time_text(None) == b"- "
    assert time_text(1_700_000_000_350).endswith(b":20.3 ")
    assert len(time_text(1_700_000_000_350)) == len("2023-11-14 22:13:20.3 ")
