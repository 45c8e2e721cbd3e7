"""Logs are read whole and untouched, however they grow and wherever they are cut."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.client.logs import (
    HELD_LINE_BYTES,
    GrowingFile,
    LineMerger,
    LogPiece,
    of_generation,
    path_of,
    pieces_since,
    read_logs,
)
from dlapp.cluster.engine import LogFiles
from dlapp.errors import DlappError, UsageError
from dlapp.values.ids import ApplicationId, ContainerId

APP = ApplicationId(1700000000000, 1)


def log(index: int, directory: Path = Path("/nowhere"), number: int | None = None) -> LogFiles:
    files = {name: f"file://{directory}/{index}.{name}" for name in ("stdout", "stderr", "dlapp.log")}
    identity = ContainerId(APP, 1, index + 2 if number is None else number)
    return LogFiles(container_id=identity, role="worker", role_index=index, index=index, files=files)


def merge(pieces: list[LogPiece]) -> bytes:
    return b"".join(LineMerger().merged(pieces))


def test_lines_of_two_containers_and_both_streams_get_their_prefixes() -> None:
    assert merge(
        [
            LogPiece(log(0), "stdout", b"epoch 1\nepo"),
            LogPiece(log(11), "stderr", b"oh\n"),
            LogPiece(log(0), "stdout", b"ch 2\n"),
            LogPiece(log(0), "dlapp.log", b"unpacked\n"),
        ]
    ) == (b"[0] epoch 1\n[11 err] oh\n[0] epoch 2\n[0 dlapp] unpacked\n")


def test_an_unterminated_last_line_is_shown_when_its_stream_ends() -> None:
    pieces = [LogPiece(log(0), "stdout", b"a\nlast"), LogPiece(log(1), "stdout", b"x\n")]
    assert merge(pieces) == b"[0] a\n[1] x\n"
    assert merge([*pieces, LogPiece(log(0), "stdout", b"")]) == b"[0] a\n[1] x\n[0] last\n"


def test_a_line_of_any_length_is_whole_without_buffering_in_memory() -> None:
    merger = LineMerger()
    half = b"x" * (HELD_LINE_BYTES // 2 + 1)
    assert [b"".join(merger.merged([LogPiece(log(0), "stdout", half)])) for _ in range(9)] == [b""] * 9
    assert b"".join(merger.merged([LogPiece(log(1), "stdout", b"short\n")])) == b"[1] short\n"
    held = sum(map(len, merger._rest.values()))
    assert held <= HELD_LINE_BYTES
    assert (
        b"".join(merger.merged([LogPiece(log(0), "stdout", b"end\nnext\n")])) == b"[0] " + half * 9 + b"end\n[0] next\n"
    )
    # The next long line of the same stream, and one that has no end.
    for _ in range(4):
        assert merger.lines(LogPiece(log(0), "stdout", half)) == []
    assert merger.lines(LogPiece(log(0), "stdout", b"")) == [half * 4]
    assert merger.lines(LogPiece(log(0), "stdout", b"")) == []


def test_a_long_line_without_disk_space_is_an_error_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"a line of stderr of container 3 has no space in .*: No space left on device"
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda buffering: full)
        with pytest.raises(DlappError, match=message):
            merge([LogPiece(log(3), "stderr", b"x" * (HELD_LINE_BYTES + 1))])


@given(st.lists(st.integers(0, 40), max_size=6), st.lists(st.integers(0, 300), max_size=10))
def test_long_lines_are_whole_wherever_their_bytes_were_cut(lengths: list[int], cuts: list[int]) -> None:
    from unittest import mock

    from dlapp.client import logs

    data = b"".join(bytes([65 + number]) * length + b"\n" for number, length in enumerate(lengths))[:-1]
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [LogPiece(log(0), "stdout", data[a:b]) for a, b in itertools.pairwise(places) if a < b]
    pieces.append(LogPiece(log(0), "stdout", b""))
    with mock.patch.object(logs, "HELD_LINE_BYTES", 10):
        merger = LineMerger()
        complete = data if data.endswith(b"\n") or not data else data + b"\n"
        assert b"".join(line + b"\n" for piece in pieces for line in merger.lines(piece)) == complete
        assert merge(pieces).replace(b"[0] ", b"") == complete


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_merged_lines_do_not_depend_on_where_the_bytes_were_cut(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [LogPiece(log(0), "stdout", data[a:b]) for a, b in itertools.pairwise(places) if a < b]
    merged = merge([*pieces, LogPiece(log(0), "stdout", b"")])
    complete = data if data.endswith(b"\n") or not data else data + b"\n"
    assert merged == b"".join(b"[0] " + line + b"\n" for line in complete.split(b"\n")[:-1])


@pytest.mark.parametrize(
    ("content", "lines", "shown"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 9, b"a\nb\n"),
        (b"a\n\n\n", 2, b"\n\n"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
        (b"\n", 1, b"\n"),
    ],
)
def test_the_last_lines_are_those_that_tail_shows(tmp_path: Path, content: bytes, lines: int, shown: bytes) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(content)
    assert b"".join(GrowingFile(str(path), last_lines=lines).pieces()) == shown


@given(st.lists(st.binary(max_size=5).filter(lambda line: b"\n" not in line), max_size=30), st.integers(1, 35))
def test_the_last_lines_are_found_across_blocks(lines: list[bytes], count: int) -> None:
    from unittest import mock

    from dlapp.system.logs import log_files

    content = b"".join(line + b"\n" for line in lines)
    descriptor = os.memfd_create("log")
    try:
        os.write(descriptor, content)
        with mock.patch.object(log_files, "PIECE_BYTES", 7):
            start = log_files.offset_of_last_lines(descriptor, len(content), count)
    finally:
        os.close(descriptor)
    assert content[start:] == b"".join(line + b"\n" for line in lines[-count:])


def test_the_last_lines_can_be_read_from_the_last_bytes_only(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"x" * 1000 + b"\nlast\n")
    for lines, shown in ((1, b"last\n"), (2, b"xx\nlast\n")):
        assert b"".join(GrowingFile(str(path), last_lines=lines, last_bytes=8).pieces()) == shown


def test_a_file_may_appear_later_and_grow(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    growing = GrowingFile(str(path), last_lines=1)
    assert list(growing.pieces()) == []
    path.write_bytes(b"old\nnew\n")
    assert list(growing.pieces()) == [b"new\n"]
    with path.open("ab") as file:
        file.write(b"\xff\x00")
    assert list(growing.pieces()) == [b"\xff\x00"]
    assert list(growing.pieces()) == []


def test_following_reads_to_the_end_including_an_unterminated_line(tmp_path: Path) -> None:
    stdout = tmp_path / "0.stdout"

    def world() -> Iterator[tuple[bool, list[LogFiles]]]:
        yield False, []
        stdout.write_bytes(b"one\ntw")
        yield False, [log(0, tmp_path)]
        with stdout.open("ab") as file:
            file.write(b"o\nthree")
        yield True, [log(0, tmp_path)]

    steps = world()
    pieces = read_logs(lambda: next(steps), follow=True)
    assert b"".join(LineMerger().merged(pieces)) == b"[0] one\n[0] two\n[0] three\n"


def test_a_container_that_follows_a_failed_one_is_shown_from_its_beginning(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory, text in ((first, b"crash\n"), (second, b"again\n")):
        directory.mkdir()
        (directory / "0.stdout").write_bytes(text)
    steps = iter([(False, [log(0, first)]), (True, [log(0, second, number=9)])])
    assert b"".join(LineMerger().merged(read_logs(lambda: next(steps), follow=True))) == b"[0] crash\n[0] again\n"


def test_without_follow_a_running_application_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "0.stdout").write_bytes(b"so far")
    assert [piece.data for piece in read_logs(lambda: (False, [log(0, tmp_path)]), streams=["stdout"])] == [
        b"so far",
        b"",
    ]


def test_only_the_wanted_container_is_read(tmp_path: Path) -> None:
    for index in range(3):
        (tmp_path / f"{index}.stdout").write_bytes(b"%d" % index)
    logs = [log(index, tmp_path) for index in range(3)]
    pieces = read_logs(lambda: (True, logs), wanted=lambda item: item.index == 1)
    assert b"".join(piece.data for piece in pieces) == b"1"


def test_a_url_is_a_path_with_any_bytes_and_another_scheme_is_refused() -> None:
    assert path_of("file:///a%20b/%ED%95%9C%FF") == os.fsdecode(b"/a b/\xed\x95\x9c\xff")
    with pytest.raises(UsageError, match="cannot be read from here"):
        path_of("http://node:8042/logs/stdout")


def timed(*parts: tuple[int | None, bytes]) -> list[LogPiece]:
    return [LogPiece(log(0), "stdout", data, time_ms) for time_ms, data in parts]


def test_lines_that_were_complete_before_a_time_are_left_out() -> None:
    pieces = timed((10, b"old\nbeg"), (20, b"un "), (30, b"later\nnew\n"), (40, b"newer\n"), (40, b""))
    assert b"".join(piece.data for piece in pieces_since(pieces, 30)) == b"begun later\nnew\nnewer\n"


def test_since_keeps_lines_without_a_time_and_drops_an_old_unterminated_one() -> None:
    assert [item.data for item in pieces_since(timed((None, b"a\n"), (10, b"old"), (10, b"")), 30)] == [b"a\n", b""]


@given(st.lists(st.sampled_from([b"a", b"bc\n", b"\n", b"d\ne"]), max_size=12), st.integers(0, 12))
def test_output_since_a_time_starts_with_a_whole_line(parts: list[bytes], since_ms: int) -> None:
    data = b"".join(parts)
    left = b"".join(item.data for item in pieces_since(timed(*enumerate(parts), (99, b"")), since_ms))
    assert data.endswith(left)
    before = data.removesuffix(left) if left else b""
    assert not before or before.endswith(b"\n")


@pytest.mark.parametrize(
    ("url", "former"),
    [
        ("file:///a/stdout/c/stdout", "file:///a/stdout/c/stdout.gen3"),
        (
            "http://n:8042/node/containerlogs/c/u/stdout/?start=0",
            "http://n:8042/node/containerlogs/c/u/stdout.gen3/?start=0",
        ),
        ("", ""),
    ],
)
def test_logs_of_a_previous_generation_have_its_number_in_their_names(url: str, former: str) -> None:
    container_id = ContainerId(ApplicationId(1, 1), 1, 2)
    log = LogFiles(
        container_id=container_id,
        role="worker",
        role_index=0,
        index=0,
        files={"stdout": url, "dlapp.log": "file:///own"},
    )
    assert of_generation(log, 3).files == {"stdout": former, "dlapp.log": "file:///own"}
