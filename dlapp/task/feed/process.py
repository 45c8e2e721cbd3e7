"""The process of one feed: ``feed``, with file descriptors at fixed numbers.

    3    a socket pair with the task: JSON each second, the state of the feed; its end is the end of this process
    4    the socket that readers connect to; it listens, and outlives this process
    5    its settings
    6    the directory of FIFOs, where there is one

It holds no locks and leaves no files. When the task ends in any way, the kernel closes the socket pair.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import threading
from collections.abc import Sequence

from dlapp.errors import DlappError
from dlapp.locations import HdfsPlace, file_system, shown
from dlapp.storage.inputs import check_feed
from dlapp.storage.open import SourceFiles
from dlapp.system.logs import log
from dlapp.task.feed.buffer import FeedBuffer
from dlapp.task.feed.fifos import FifoWriter
from dlapp.task.feed.order import FeedOrder, ReaderPart, Segment, digest
from dlapp.task.feed.sockets import FeedContent, SocketReaders
from dlapp.task.interrupt import UninterruptedSteps
from dlapp.task.step_errors import StepFailed, step
from dlapp.value import Value
from dlapp.values.serialization import from_json
from dlapp.values.spec import InputSpec

CONTROL_FD, LISTENER_FD, SETTINGS_FD, FIFOS_FD = 3, 4, 5, 6
STATE_EVERY_S = 1.0


class FeedSettings(Value, kw_only=True):
    """Settings of the process of a feed.

    Args:
        index, size: the part of this container.
        directory: for the buffer.
        patience_s: how long a server may be away.
        has_fifos: there is a directory of FIFOs.
        in_memory: small files are held in memory.
    """

    section: InputSpec
    hdfs: HdfsPlace | None
    index: int
    size: int
    directory: str
    patience_s: float
    has_fifos: bool
    in_memory: bool


def main(argv: Sequence[str]) -> int:
    """Feed until the task ends."""
    if argv:
        print("Error: dlapp feed: takes no arguments", file=sys.stderr)
        return 2
    with open(SETTINGS_FD, "rb") as file:
        settings = from_json(FeedSettings, json.load(file))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    FeedProcess(settings, socket.socket(fileno=CONTROL_FD)).run()
    return 0


class FeedProcess:
    """Work of the process."""

    def __init__(self, settings: FeedSettings, control: socket.socket) -> None:
        spec = settings.section.feed
        assert spec is not None
        self._settings, self._control, self._spec = settings, control, spec
        section = settings.section
        self._sources = SourceFiles(section.sources, settings.hdfs, may_be_missing=section.optional)
        self._listed = threading.Event()
        self._content: FeedContent | None = None
        self._buffer: FeedBuffer | None = None
        self._failure: Exception | None = None
        self._checking = threading.Lock()
        self._checked_epoch = -1
        self._fifos: FifoWriter | None = None

    def run(self) -> None:
        """Serve readers and report the state to the task, until the process is ended."""
        threading.Thread(target=self._end_with_task, name="feed-task", daemon=True).start()
        listener = socket.socket(fileno=LISTENER_FD)
        readers = SocketReaders(listener, self._wait_for_content, log.warning, self._send_status)
        threading.Thread(target=readers.run, name="feed-readers", daemon=True).start()
        if self._settings.has_fifos:
            self._fifos = FifoWriter(FIFOS_FD, self._wait_for_content, log.warning, self._send_status)
            threading.Thread(target=self._fifos.run, name="feed-fifos", daemon=True).start()
        threading.Thread(target=self._list, name="feed-list", daemon=True).start()
        pause = threading.Event()
        while True:
            self._send_status()
            pause.wait(STATE_EVERY_S)

    def _end_with_task(self) -> None:
        with contextlib.suppress(OSError):
            while self._control.recv(1):
                pass
            self._send_status()
        os._exit(0)

    def _list(self) -> None:
        try:
            found = self._sources.find()
            nodes = [node for _, node in found]
            check_feed(self._spec, nodes)
            settings, spec = self._settings, self._spec
            systems = [system for system, _ in found]

            def fetch(item: Segment, fd: int) -> None:
                systems[item.place].read_range(item.node, fd, item.start, item.end)

            self._buffer = FeedBuffer(
                fetch,
                self._end_epoch,
                settings.directory,
                spec.buffer_bytes,
                settings.patience_s,
                in_memory=settings.in_memory,
            )
            order = FeedOrder(nodes, spec.shuffle, spec.epochs)
            self._content = FeedContent(spec, order, self._buffer, ReaderPart(settings.index, settings.size))
        except Exception as error:
            self._failure = error
        self._listed.set()

    def _wait_for_content(self) -> FeedContent:
        self._listed.wait()
        if self._content is None:
            assert self._failure is not None
            raise self._failure
        return self._content

    def _end_epoch(self, epoch: int) -> None:
        """Compare the file list with the initial one. For native HDFS this also loads the block locations of the next
        epoch.
        """
        assert self._content is not None
        with self._checking:
            if epoch <= self._checked_epoch:
                return
            now = [node for _, node in self._sources.find()]
            order = self._content.order
            if digest(now) != order.digest:
                before = {node.source: (node.size_bytes, node.mtime_ns) for node in order.nodes}
                after = {node.source: (node.size_bytes, node.mtime_ns) for node in now}
                changed = sorted(name for name in before | after if before.get(name) != after.get(name))
                raise DlappError(f"{shown(changed[0])} changed in epoch {epoch} of the feed")
            self._checked_epoch = epoch

    def _send_status(self) -> None:
        said: dict[str, object] = {}
        failure = self._failure
        if self._buffer is not None:
            waited_s, readers = self._buffer.waits()
            said = {"waited_s": waited_s, "readers": readers, "bytes": self._buffer.fetched_bytes}
            said |= {"away": self._buffer.away, "fifos": self._fifos is not None and self._fifos.in_use}
            failure = failure or self._buffer.failure
        if failure is not None:
            said["failure"] = _described(failure, self._settings.section)
        with contextlib.suppress(BlockingIOError):
            self._control.send(json.dumps(said).encode(), socket.MSG_DONTWAIT)


def _described(failure: Exception, section: InputSpec) -> dict[str, str]:
    """Return the fault of an error, and the message for the user."""
    try:
        what = f"input {section.input_path} could not be fed"
        with step(UninterruptedSteps(), what, service=file_system(section.sources[0])):
            raise failure
    except StepFailed as failed:
        return {"fault": failed.fault.value, "message": str(failed)[:4000], "service": failed.service}
    except Exception as error:
        return {"fault": "node", "message": f"input {section.input_path} could not be fed: {error!r}"[:4000]}
