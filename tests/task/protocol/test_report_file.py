"""Lines that a payload writes to DLAPP_REPORT are data: checked, bounded, and no link is followed."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.task.protocol.report_file import LINES_PER_S, MAX_LINE_BYTES, ReportFile
from dlapp.task.sweep.curve import MetricCurve
from dlapp.values.messages import MAX_METRICS, PayloadStatus


class Followed:
    """A report file in a directory of a test, and what was noted of it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.path = directory / "report"
        self.notes: list[str] = []
        fd = os.open(directory, os.O_RDONLY)
        self.file = ReportFile(fd, self.notes.append)
        os.close(fd)
        self.now_s = 0.0

    def append(self, *lines: Any, end: str = "\n") -> None:
        with open(self.path, "ab") as file:
            for line in lines:
                data = line if isinstance(line, bytes) else json.dumps(line).encode()
                file.write(data + end.encode())

    def read(self, after_s: float = 1.0) -> PayloadStatus:
        self.now_s += after_s
        self.file.read(self.now_s)
        return self.file.status

    def finish(self) -> PayloadStatus:
        self.file.finish(self.now_s + 1)
        return self.file.status


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    one = Followed(tmp_path / "run")
    yield one
    one.file.close()


def test_lines_add_up_to_the_payloads_status(followed: Followed) -> None:
    followed.append({"progress": 0.25}, {"metrics": {"loss": 2, "val/acc": 0.5}, "step": 10})
    assert followed.read() == PayloadStatus(progress=0.25, metrics={"loss": 2.0, "val/acc": 0.5}, step=10, lines=2)
    followed.append({"metrics": {"loss": 1.5}, "step": 20}, {"ready": True})
    status = followed.read()
    assert status == PayloadStatus(progress=0.25, metrics={"loss": 1.5, "val/acc": 0.5}, step=20, ready=True, lines=4)
    assert followed.notes == []


def test_a_line_counts_when_its_end_is_written(followed: Followed) -> None:
    followed.append(b'{"progress": 0.', end="")
    assert followed.read().progress is None
    followed.append(b"5}")
    assert followed.read().progress == 0.5
    assert followed.notes == []


def test_the_last_line_needs_no_line_end_once_the_payload_has_ended(followed: Followed) -> None:
    followed.append(b'{"progress": 0.5}\n{"progress": 1}', end="")
    assert followed.read().progress == 0.5
    assert followed.finish().progress == 1.0


def test_half_a_line_at_the_end_is_ignored(followed: Followed) -> None:
    followed.append(b'{"progress": 0.5}\n{"progr', end="")
    assert followed.finish().progress == 0.5
    assert followed.notes[0].startswith("$DLAPP_REPORT: a line is ignored: it is not JSON: ")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"progress=0.5", "it is not JSON"),
        (b"[" * 4000, "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"\0" * 100, "it is not JSON"),
        (b"[0.5]", "it is not a JSON object"),
        (b"{}", None),
        (b'{"progres": 0.5}', "it has no key that is known"),
        (b'{"progress": 50}', "progress is not a number from 0 to 1"),
        (b'{"progress": -0.1}', "progress is not a number from 0 to 1"),
        (b'{"progress": true}', "progress is not a number"),
        (b'{"progress": "0.5"}', "progress is not a number"),
        (b'{"progress": null}', "progress is not a number"),
        (b'{"progress": NaN}', "NaN is not a finite number"),
        (b'{"metrics": {"loss": Infinity}}', "Infinity is not a finite number"),
        (b'{"metrics": {"loss": 1e999}}', "a number is not finite"),
        (b'{"metrics": {"loss": 1' + b"0" * 400 + b"}}", "a number is not finite"),
        (b'{"metrics": {"loss": 1e19}}', "metrics has a value beyond 1e+18"),
        (b'{"metrics": {"loss": [1]}}', "a metric is not a number"),
        (b'{"metrics": 3}', "metrics is not an object"),
        (b'{"metrics": {"a b": 1}}', "metrics has a name that is not"),
        (b'{"metrics": {"": 1}}', "metrics has a name that is not"),
        (b'{"metrics": {"\\u001b[2J": 1}}', "metrics has a name that is not"),
        (b'{"metrics": {"' + b"a" * 65 + b'": 1}}', "metrics has a name that is not"),
        (b'{"step": 1.5}', "step is not a whole number"),
        (b'{"step": true}', "step is not a whole number"),
        (b'{"step": -1}', "step is not a number from 0 to"),
        (b'{"step": 1' + b"0" * 30 + b"}", "step is not a number from 0 to"),
        (b'{"ready": 1}', "ready is not true or false"),
        (b'{"checkpoint": ""}', "checkpoint is not the path of a directory"),
        (b'{"checkpoint": "a\\u0000b"}', "checkpoint is not the path of a directory"),
        (b'{"checkpoint": ["a"]}', "checkpoint is not the path of a directory"),
        (b'{"metrics": {"a": 1}, "x": "' + b"y" * MAX_LINE_BYTES + b'"}', "it is longer than 4096 bytes"),
    ],
)
def test_a_bad_line_is_ignored_and_noted_once(followed: Followed, line: bytes, problem: str | None) -> None:
    followed.append(line, line, {"progress": 0.5})
    status = followed.read()
    bad = [] if problem is None else [note for note in followed.notes if problem in note]
    assert len(bad) == (problem is not None)
    assert all("\0" not in note and "\x1b" not in note and len(note) < 1000 for note in followed.notes)
    assert (status.progress, status.metrics, status.step, status.ready) == (0.5, {}, None, False)


def test_an_unknown_key_is_noted_and_the_known_ones_of_its_line_count(followed: Followed) -> None:
    followed.append({"progress": 0.5, "epoch": 3}, {"progress": 0.6, "epoch": 4})
    assert followed.read().progress == 0.6
    assert followed.notes == ["$DLAPP_REPORT: has a key that is not known: 'epoch'"]


def test_there_are_at_most_so_many_metrics(followed: Followed) -> None:
    followed.append({"metrics": {f"m{n}": n for n in range(MAX_METRICS)}}, {"metrics": {"more": 1}})
    assert sorted(followed.read().metrics) == sorted(f"m{n}" for n in range(MAX_METRICS))
    assert "more than 64 names" in followed.notes[0]


def test_the_last_of_many_lines_a_second_counts(followed: Followed) -> None:
    followed.append(*({"progress": n / 100_000} for n in range(100_001)))
    status = followed.read()
    assert status.progress == 1.0
    assert status.lines <= 2 * LINES_PER_S
    assert len(followed.notes) == 1
    assert "more than 10 lines a second" in followed.notes[0]


def test_a_flood_of_one_key_hides_no_other_key(followed: Followed) -> None:
    metrics = [{"metrics": {"loss": n}, "step": n} for n in range(5000)]
    followed.append(*metrics, {"checkpoint": "models/7"}, {"ready": True}, *metrics)
    status = followed.read()
    assert (status.ready, status.step, status.metrics) == (True, 4999, {"loss": 4999.0})
    assert (followed.file.checkpoint, followed.file.checkpoints) == ("models/7", 1)


def test_ten_lines_a_second_are_all_taken(followed: Followed) -> None:
    for second in range(3):
        followed.append(*({"step": 10 * second + n} for n in range(LINES_PER_S)))
        assert followed.read().lines == 10 * (second + 1)
    assert followed.notes == []


def test_a_truncated_file_is_read_from_its_beginning(followed: Followed) -> None:
    followed.append({"progress": 0.1}, {"progress": 0.2})
    followed.read()
    followed.path.write_text('{"progress": 0.3}\n')
    assert followed.read().progress == 0.3
    assert followed.notes == ["$DLAPP_REPORT: was truncated; append to it"]


def test_a_huge_sparse_file_is_read_in_part_and_the_newest_line_counts(followed: Followed) -> None:
    with open(followed.path, "ab") as file:
        file.truncate(10 << 30)
    followed.append(b"", {"progress": 0.7})
    assert followed.read().progress == 0.7
    assert any("grows too fast" in note for note in followed.notes)


def place_link(path: Path) -> None:
    path.symlink_to("/etc/shadow")


def place_directory(path: Path) -> None:
    path.mkdir()


def place_fifo(path: Path) -> None:
    os.mkfifo(path)


def place_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def place_file(path: Path) -> None:
    path.write_text('{"progress": 1}\n')


@pytest.mark.parametrize("place", [place_link, place_directory, place_fifo, place_socket, place_file])
def test_a_replaced_report_file_is_not_read(followed: Followed, place: Callable[[Path], None]) -> None:
    followed.append({"progress": 0.1})
    followed.read()
    followed.path.unlink()
    place(followed.path)
    assert followed.read().progress == 0.1
    assert followed.finish().progress == 0.1
    assert followed.notes == ["$DLAPP_REPORT: was removed or replaced by the payload; what is there now is not read"]


def test_an_existing_report_file_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report").symlink_to("/etc/passwd")
    with pytest.raises(FileExistsError):
        Followed(tmp_path / "run")


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                [b"\n", b'{"progress": 0.5}\n', b'{"step": 3}', b'{"metrics": {"a": 1}}\n', b'"ready"\n', b"\0" * 5000]
            ),
        ),
        max_size=30,
    )
)
def test_any_bytes_in_any_pieces_are_read_as_the_whole_would_be(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        whole, parts = Followed(Path(directory) / "whole"), Followed(Path(directory) / "parts")
        whole.append(b"".join(pieces), end="")
        for piece in pieces:
            parts.append(piece, end="")
            parts.read(after_s=60.0)
        whole.now_s = 1e6
        total = b"".join(pieces).count(b"\n")
        one, other = whole.finish(), parts.finish()
        if total < LINES_PER_S:
            assert one == other
        assert len(whole.notes) < 20
        whole.file.close()
        parts.file.close()


def test_every_report_of_a_metric_that_is_watched_is_read_and_bad_ones_are_named(tmp_path: Path) -> None:
    directory = tmp_path / "watched"
    directory.mkdir()
    curve = MetricCurve("loss")
    fd = os.open(directory, os.O_RDONLY)
    file = ReportFile(fd, lambda _: None, curve)
    os.close(fd)
    lines = [json.dumps({"metrics": {"loss": step / 8, "other": 1}, "step": step}) for step in range(100)]
    bad = ['{"metrics": {"loss": NaN}, "step": 100}', '{"metrics": {"loss": "low"}}', '{"metrics": {"loss": 1e400}}']
    with (directory / "report").open("a") as stream:
        stream.write("\n".join([*lines, *bad, '{"metrics": {"other": 2}}', ""]))
    file.read(1.0)
    file.close()
    assert curve.points == [(step, step / 8) for step in range(100)]
    assert curve.reports == 100
    assert curve.problem == "a number is not finite"
