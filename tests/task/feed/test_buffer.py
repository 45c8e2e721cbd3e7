"""Buffer of a feed: filled within its bounds, as fast as its readers, and with patience for servers."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dlapp.errors import DlappError, Unreachable
from dlapp.storage.values import TreeNode
from dlapp.task.feed.buffer import MAX_ITEMS, MEMORY_BYTES, FeedBuffer
from dlapp.task.feed.feeds import TaskFeeds
from dlapp.task.feed.order import EpochEnd, FeedOrder, FeedPosition, ReaderPart, Segment
from dlapp.task.feed.process import FeedSettings
from dlapp.values.spec import FeedFormat, FeedSpec, InputSpec
from tests.applications import wait_for
from tests.task.feed.serving import ServedFeed

GIB = 1 << 30


def node(name: str, size_bytes: int) -> TreeNode:
    return TreeNode(name, name, stat.S_IFREG | 0o644, size_bytes, 1)


@pytest.mark.slow
def test_a_terabyte_is_fed_through_a_buffer_of_a_gibibyte(tmp_path: Path) -> None:
    readers = 3
    nodes = [node(f"{number}", size) for number, size in enumerate((400 * GIB + 7, 0, 1, 600 * GIB, 24 * GIB - 3))]
    begun = 0

    def fetch(item: Segment, _fd: int) -> None:
        nonlocal begun
        with buffer.lock:
            begun += item.size_bytes
            assert begun <= GIB

    buffer = FeedBuffer(fetch, lambda _: None, str(tmp_path), GIB, 0.0)
    order = FeedOrder(nodes, 3, 1)
    most, passed = 4 * buffer.segment_bytes(readers), 0  # larger parts, so that there are fewer
    queues = []
    for number in range(readers):
        queues.append(buffer.open(order.segments(ReaderPart(number, readers), FeedPosition(), most), readers))
    while queues:
        for queue in list(queues):
            found = queue.take(3)
            for item, fd in found:
                if fd >= 0:
                    os.close(fd)
                passed += item.size_bytes
                with buffer.lock:
                    begun -= item.size_bytes
            queue.acknowledge(len(found))
            if not found:
                queue.close()
                queues.remove(queue)
    buffer.close()
    assert passed == sum(one.size_bytes for one in nodes) > 1 << 40


def test_a_reader_that_does_not_read_stops_the_fetching_for_it_alone(tmp_path: Path) -> None:
    nodes = [node(f"{number:05}", 4096) for number in range(4000)]
    buffer = FeedBuffer(lambda *_: None, lambda _: None, str(tmp_path), GIB, 0.0)
    order = FeedOrder(nodes, None, 1)
    slow, quick = (buffer.open(order.segments(ReaderPart(i, 2), FeedPosition(), GIB), 2) for i in range(2))
    read = 0
    while found := quick.take(64):
        for _, fd in found:
            if fd >= 0:
                os.close(fd)
        read += len(found)
        quick.acknowledge(len(found))
    assert read == 2001
    wait_for("the other's share", lambda: buffer.fetched_bytes == 4096 * (2000 + MAX_ITEMS // 2), 120)
    for queue in (slow, quick):
        queue.close()
    buffer.close()


def test_small_files_are_held_in_memory_up_to_its_bound(tmp_path: Path) -> None:
    size = 1 << 20
    buffer = FeedBuffer(lambda *_: None, lambda _: None, str(tmp_path), GIB, 0.0, in_memory=True)
    order = FeedOrder([node(f"{number:05}", size) for number in range(200)], None, 1)
    queue = buffer.open(order.segments(ReaderPart(0, 1), FeedPosition(), GIB), 1)
    wait_for("the bound", lambda: buffer.fetched_bytes == MEMORY_BYTES, 120)
    ((_, fd),) = queue.take(1)
    assert os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:")
    os.close(fd)
    queue.close()
    buffer.close()


@pytest.mark.proves("feed-memory")
def test_a_reader_that_keeps_all_it_was_sent_has_no_memory_of_the_host(tmp_path: Path) -> None:
    files = {f"{number:03}": b"x" for number in range(20)}
    retained = []
    with ServedFeed(tmp_path, files, FeedSpec(format=FeedFormat.FILES)) as served:
        for _ in range(3):  # it acknowledges, and connects again
            queue = served.content.queue(0, 1, FeedPosition())
            while found := queue.take(5):
                retained += [fd for _, fd in found if fd >= 0]
                queue.acknowledge(len(found))
            queue.close()
    assert len(retained) == 60
    for fd in retained:
        assert not os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:")
        os.close(fd)


@pytest.mark.proves("feed-memory")
@pytest.mark.parametrize(("image", "in_memory"), [(None, True), ("debian", False)])
def test_only_a_plain_payload_has_small_files_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str | None, in_memory: bool
) -> None:
    seen: list[FeedSettings] = []
    monkeypatch.setattr("dlapp.task.feed.feeds.TaskFeed", lambda _section, settings, *_: seen.append(settings))
    section = InputSpec(sources=("file:///in",), input_path="in", feed=FeedSpec(format=FeedFormat.FILES))
    assignment = SimpleNamespace(
        inputs=(section,), role_index=0, role_size=1, output_patience_s=1.0, docker_image=image
    )
    TaskFeeds(cast("Any", assignment), cast("Any", SimpleNamespace(hdfs=None)), str(tmp_path), lambda _: None)
    assert [item.in_memory for item in seen] == [in_memory]


def test_an_unreachable_server_is_waited_for_and_reported(tmp_path: Path) -> None:
    is_away, seen = True, list[str]()

    def fetch(_item: Segment, fd: int) -> None:
        if is_away:
            raise Unreachable("no NameNode answers")
        os.write(fd, b"x")

    buffer = FeedBuffer(fetch, lambda _: None, str(tmp_path), GIB, 600.0)
    queue = buffer.open(FeedOrder([node("f", 1)], None, 1).segments(ReaderPart(0, 1), FeedPosition(), GIB), 1)
    seen.append(wait_for("the reason", lambda: buffer.away, 120))
    is_away = False
    items = [item for item, _ in queue.take(1)]
    assert (seen, len(items), buffer.away) == (["no NameNode answers"], 1, "")
    queue.close()
    buffer.close()


def test_the_time_that_readers_wait_for_input_is_counted(tmp_path: Path) -> None:
    now_s = 100.0
    buffer = FeedBuffer(lambda *_: None, lambda _: None, str(tmp_path), GIB, 0.0, clock=lambda: now_s)
    queue = buffer.open(FeedOrder([node("f", 1)], None, 1).segments(ReaderPart(0, 1), FeedPosition(), GIB), 1)
    now_s = 103.0
    os.close(queue.take(1)[0][1])  # it had waited for 3 s
    now_s = 110.0
    assert buffer.waits() == (3.0, 1)  # it works on what it got
    queue.acknowledge(1)
    now_s = 112.0
    assert buffer.waits() == (5.0, 1)
    queue.close()
    assert buffer.waits() == (5.0, 0)
    buffer.close()


def test_an_epoch_ends_after_its_end_was_checked(tmp_path: Path) -> None:
    def end_epoch(epoch: int) -> None:
        if epoch == 1:
            raise DlappError("f changed")

    with ServedFeed(tmp_path, {"f": b"x"}, FeedSpec(epochs=3), end_epoch=end_epoch) as served:
        queue = served.content.queue(0, 1, FeedPosition())
        ends = list[int]()

        def read_all() -> None:
            while True:
                for item, fd in queue.take(1):
                    if isinstance(item, EpochEnd):
                        ends.append(item.epoch)
                    if fd >= 0:
                        os.close(fd)
                queue.acknowledge(1)

        with pytest.raises(DlappError, match="f changed"):
            read_all()
        queue.close()
    assert ends == [0]
