"""Lines that a program overwrites by carriage returns, followed on a terminal."""

from __future__ import annotations

from dlapp.client.logs import HELD_LINE_BYTES, LogPiece
from dlapp.cluster.engine import LogFiles
from dlapp.tools.display.progress_lines import SHOWN_EVERY_S, ProgressLines
from dlapp.values.ids import ApplicationId, ContainerId


class Reader:
    """Gives pieces of one stream to the lines, at a time of its own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.merger = ProgressLines(lambda: self.now_s)
        identity = ContainerId(ApplicationId(1700000000000, 1), 1, 2)
        self._log = LogFiles(container_id=identity, role="worker", role_index=0, index=0, files={})

    def lines(self, data: bytes, stream: str = "stderr") -> list[bytes]:
        return self.merger.lines(LogPiece(self._log, stream, data))


def test_a_bar_is_shown_at_once_then_from_time_to_time_and_at_its_end() -> None:
    reader = Reader()
    assert reader.lines(b"\r 1%") == [b" 1%"]
    assert reader.lines(b"\r 2%\r 3%") == []
    reader.now_s += SHOWN_EVERY_S
    assert reader.lines(b"\r 4%\r 5%") == [b" 5%"]
    assert reader.lines(b"\r 5%") == []
    reader.now_s += SHOWN_EVERY_S
    assert reader.lines(b"\r 5%") == []  # it is shown already
    assert reader.lines(b"\r100%\nnext\n") == [b"\r 5%\r100%", b"next"]


def test_the_end_of_a_bar_that_was_shown_is_not_shown_again() -> None:
    reader = Reader()
    assert reader.lines(b"\r100%") == [b"100%"]
    assert reader.lines(b"\nnext\n") == [b"next"]
    assert reader.lines(b"\r100%") == [b"100%"]
    assert reader.lines(b"") == []


def test_overwritten_lines_take_no_memory() -> None:
    reader = Reader()
    reader.lines(b"\r 0%")
    for _ in range(5):
        assert reader.lines(b"\r%90d" % 1 * (HELD_LINE_BYTES // 50)) == []
    assert sum(map(len, reader.merger._rest.values())) < 100
    assert reader.merger._long == {}


def test_other_lines_are_those_that_were_printed() -> None:
    reader = Reader()
    assert reader.lines(b"a\r\nb\r") == [b"a\r"]
    assert reader.lines(b"\nc") == [b"b\r"]
    assert reader.lines(b"\r 1%", "stdout") == [b" 1%"]
    assert reader.lines(b"") == [b"c"]
