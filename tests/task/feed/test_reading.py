"""Records of a feed as programs read them: formats, orders, epochs, parts, positions, and connections that break."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from pathlib import Path

import pytest

from dlapp import context, feed
from dlapp.errors import DlappError
from dlapp.feed import FeedError
from dlapp.task.feed.order import FeedPosition, ReaderPart
from dlapp.values.spec import FeedFormat, FeedSpec
from tests.seeds import each_seed
from tests.task.feed.serving import ServedFeed, files_of, record_of, tar_of

KINDS = (FeedFormat.FILES, FeedFormat.LINES, FeedFormat.TAR, FeedFormat.TFRECORD)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shuffle", [None, 5])
def test_each_epoch_has_every_record_once(tmp_path: Path, kind: FeedFormat, shuffle: int | None) -> None:
    files, records = files_of(kind, 12, random.Random(1))
    with ServedFeed(tmp_path, files, FeedSpec(format=kind, epochs=3, shuffle=shuffle)) as served:
        found = [(epoch, [record_of(kind, item) for item in read]) for epoch, read in served.read().by_epoch()]
    assert [epoch for epoch, _ in found] == [0, 1, 2]
    assert all(sorted(read) == sorted(records) for _, read in found)
    assert (found[0][1] == found[1][1]) == (shuffle is None)


def test_a_seed_gives_the_same_order_each_time(tmp_path: Path) -> None:
    files, _ = files_of(FeedFormat.LINES, 12, random.Random(1))
    orders: list[list[bytes]] = []
    for seed in (5, 5, 6):
        (tmp_path / str(len(orders))).mkdir()
        spec = FeedSpec(format=FeedFormat.LINES, shuffle=seed)
        with ServedFeed(tmp_path / str(len(orders)), files, spec) as served:
            orders.append(list(served.read()))
    assert orders[0] == orders[1] != orders[2]


@each_seed("reading", 50)
def test_every_record_is_read_once_by_members_that_are_killed_and_resume(tmp_path: Path, seed: int) -> None:
    """Read up to 11 files for 1 or 2 epochs by 1 to 3 members of 1 or 2 readers, and kill them."""
    dice = random.Random(seed)
    kind = dice.choice(KINDS)
    files, records = files_of(kind, dice.randrange(1, 12), dice)
    members, readers, epochs = dice.randrange(1, 4), dice.randrange(1, 3), dice.randrange(1, 3)
    spec = FeedSpec(format=kind, epochs=epochs, shuffle=dice.choice((None, seed)))
    trained = Counter[tuple[int, bytes]]()
    for index in range(members):
        (place := tmp_path / str(index)).mkdir()
        with ServedFeed(place, files, spec, ReaderPart(index, members)) as served:
            for reader in range(readers):
                trained += _train(served, (reader, readers), kind, dice)
    expected = Counter({(epoch, record): 1 for epoch in range(epochs) for record in records})
    assert trained == expected, f"seed {seed}"


def _train(
    served: ServedFeed, part: tuple[int, int], kind: FeedFormat, dice: random.Random
) -> Counter[tuple[int, bytes]]:
    """Read all of a part as a program does that is killed at times, and continues from its last checkpoint."""
    stored, position, kills = Counter[tuple[int, bytes]](), dict[str, object](), 4
    while True:
        reader = served.read(json.loads(json.dumps(position)), part)
        since = Counter[tuple[int, bytes]]()
        for record in reader:
            since[reader.epoch, record_of(kind, record)] += 1
            if dice.random() < 0.2:
                served.break_connections()
            if dice.random() < 0.3:  # a checkpoint
                stored, since, position = stored + since, Counter(), reader.position()
            if kills and dice.random() < 0.2:
                kills -= 1
                break  # killed: what came after the checkpoint is lost with the program
        else:
            return stored + since


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"one\r\ntwo\nthree", [b"one", b"two", b"three"]),
        (b"one\r\ntwo\r\n", [b"one", b"two"]),
        (b"\r\n\n\r\n", [b"", b"", b""]),
        (b"a\rb\r\r\nc\r", [b"a\rb\r", b"c\r"]),
        (b"x" * (1 << 20) + b"\r\ny", [b"x" * (1 << 20), b"y"]),
    ],
)
@pytest.mark.parametrize("shuffle", [None, 1])
def test_line_ends_of_both_kinds_are_removed(
    tmp_path: Path, content: bytes, lines: list[bytes], shuffle: int | None
) -> None:
    with ServedFeed(tmp_path, {"l.txt": content}, FeedSpec(format=FeedFormat.LINES, shuffle=shuffle)) as served:
        assert sorted(served.read()) == sorted(lines)


def test_a_tar_member_belongs_to_the_sample_of_its_name_up_to_the_first_dot(tmp_path: Path) -> None:
    members = {"a/1.jpg": b"x", "a/1.seg.PNG": b"y", "a/2.jpg": b"z", ".hidden": b"h"}
    with ServedFeed(tmp_path, {"t.tar": tar_of(members)}, FeedSpec(format=FeedFormat.TAR)) as served:
        assert list(served.read()) == [
            {"__key__": "a/1", "__url__": "t.tar", "jpg": b"x", "seg.png": b"y"},
            {"__key__": "a/2", "__url__": "t.tar", "jpg": b"z"},
        ]


def test_a_file_in_parts_is_whole_after_a_broken_connection(tmp_path: Path) -> None:
    content = random.Random(2).randbytes(9 << 20)
    spec = FeedSpec(buffer_bytes=16 << 20)
    with ServedFeed(tmp_path, {"large": content, "small": b"s"}, spec) as served:
        reader = iter(served.read())
        file = next(reader)
        first = file.read(5 << 20)
        served.break_connections()
        assert (file.name, first + file.read()) == ("large", content)
        assert next(reader).read() == b"s"
        assert max(entry.size_bytes for entry in served.fetched) == 4 << 20


def test_the_unread_rest_of_a_file_is_skipped(tmp_path: Path) -> None:
    with ServedFeed(tmp_path, {"a": bytes(9 << 20), "b": b"s"}, FeedSpec(buffer_bytes=16 << 20)) as served:
        assert [item.read(1) for item in served.read()] == [b"\0", b"s"]


@pytest.mark.parametrize("content", [b"abc", (1 << 40).to_bytes(8, "little") + bytes(40), bytes(15)])
def test_a_file_that_is_no_tfrecord_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    with (
        ServedFeed(tmp_path, {"f": content}, FeedSpec(format=FeedFormat.TFRECORD)) as served,
        pytest.raises(FeedError, match="f is not a TFRecord file, or not whole"),
    ):
        list(served.read())


def test_a_reader_gets_the_reason_why_the_feed_failed(tmp_path: Path) -> None:
    def fetch(*_: object) -> None:
        raise DlappError("the disk is full")

    with (
        ServedFeed(tmp_path, {"f": b"x"}, FeedSpec(), fetch=fetch) as served,
        pytest.raises(FeedError, match="the disk is full"),
    ):
        list(served.read())


def test_a_position_of_other_files_or_another_part_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with ServedFeed(tmp_path, {"f": b"x"}, FeedSpec()) as served:
        reader = served.read()
        list(reader)
        with pytest.raises(FeedError, match="this process reads part worker/0 of 1, 1 of 2"):
            list(served.read(reader.position(), (1, 2)))
        with pytest.raises(FeedError, match="is beyond the input"):
            list(served.read({**reader.position(), "epoch": 0, "file": 7}))
        assert list(served.read({**reader.position(), "epoch": 9})) == []
    with (
        ServedFeed(tmp_path / "other", {"f": b"xy"}, FeedSpec()) as served,
        pytest.raises(FeedError, match="the input has changed"),
    ):
        list(served.read(reader.position()))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"x" * 70_000,
        b"[" * 10_000,
        b'{"part": [0, 1], "epoch": -1, "file": 0, "at": 0, "files": ""}',
        b'{"part": [0, 0], "epoch": 0, "file": 0, "at": 0, "files": ""}',
        b'{"part": [0, 999999], "epoch": 0, "file": 0, "at": 0, "files": ""}',
        b'{"part": [0, 1], "epoch": 1e9, "file": 0, "at": 0, "files": ""}',
        b'{"part": [0, 1], "epoch": 0, "file": 0, "at": 99999999999, "files": ""}',
    ],
)
def test_a_request_that_is_none_is_refused_and_others_are_served(tmp_path: Path, message: bytes) -> None:
    with ServedFeed(tmp_path, {"f": b"x"}, FeedSpec()) as served:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.settimeout(120)
            stranger.connect(served.path)
            stranger.send(message)
            if message:
                assert b"error" in stranger.recv(1 << 16)
            stranger.shutdown(socket.SHUT_WR)
            assert [item.read() for item in served.read()] == [b"x"]
        assert served.notes == []


def test_a_reported_checkpoint_has_the_positions_to_resume_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_OPEN", [])
    monkeypatch.delenv("DLAPP_REPORT", raising=False)
    (model := tmp_path / "model").mkdir()
    with ServedFeed(tmp_path, {"f": b"1\n2\n3"}, FeedSpec(format=FeedFormat.LINES, epochs=2)) as served:
        monkeypatch.setenv("DLAPP_FEED", served.path)
        records = iter(context.feed())
        assert [next(records) for _ in range(4)] == [b"1", b"2", b"3", b"1"]
        context.checkpoint(str(model))
        assert list(records) == [b"2", b"3"]  # to the end, which closes its connection
        monkeypatch.setenv("DLAPP_RESUME_FROM", str(model))
        assert list(context.feed()) == [b"2", b"3"]
        assert list(context.feed(start={})) == [b"1", b"2", b"3"] * 2
        monkeypatch.setenv("DLAPP_ROLE_INDEX", "1")
        with pytest.raises(FeedError, match=r"no position of part worker/1 of 1, 0 of 1"):
            list(context.feed())
        (model / "dlapp_feed.json").unlink()
        with pytest.warns(RuntimeWarning, match="begins anew"):
            assert len(list(context.feed())) == 6


def test_outside_of_dlapp_there_is_no_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DLAPP_FEED", raising=False)
    with pytest.raises(RuntimeError, match="DLAPP_FEED_TRAIN_SET is not set"):
        context.feed("train-set")


def test_a_reader_starts_at_a_position_within_a_file(tmp_path: Path) -> None:
    with ServedFeed(tmp_path, {"f": b"0123456789"}, FeedSpec()) as served:
        queue = served.content.queue(0, 1, FeedPosition(0, 0, 4))
        ((item, _),) = queue.take(1)
        queue.close()
    assert (item.start, item.end) == (4, 10)  # type: ignore[union-attr]
