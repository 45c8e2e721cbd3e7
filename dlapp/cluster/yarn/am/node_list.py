"""List of the cluster's nodes, read in its own thread: 10,000 nodes take 2.8 MB, and seconds to parse.

Changes come with the heartbeats. The whole list is read at the start, after a restart of the ResourceManager, and at
intervals for missed changes.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from dlapp.cluster.yarn.values import NodeReport
from dlapp.errors import DlappError
from dlapp.hadoop.errors import ConnectionLost

EVERY_S, EVERY_S_EACH = 600.0, 0.2
"""Minimum interval between two lists, and the interval per node, if that is longer: 280 bytes per node are 0.09 MB a
minute, however many nodes there are. A list of 10,000 nodes comes every 33 to 50 minutes."""
MIN_INTERVAL_S = 30.0
"""Minimum interval between two lists in any case."""
FIRST_TIMEOUT_S = 5.0


class NodeList:
    """Reader of the cluster's nodes, at intervals.

    Args:
        read: returns the nodes.
        receive: receives them, from another thread.
    """

    def __init__(
        self, read: Callable[[], Sequence[NodeReport]], receive: Callable[[Sequence[NodeReport]], None]
    ) -> None:
        self._read, self._receive = read, receive
        self._changed = threading.Condition()
        self._has_first = threading.Event()
        self._is_due_soon = self._closed = False
        self._thread = threading.Thread(target=self._run, name="am-node-list", daemon=True)

    def start(self) -> None:
        """Start, and wait briefly for the first list: requests that name hosts are met sooner."""
        self._thread.start()
        self._has_first.wait(FIRST_TIMEOUT_S)

    def read_soon(self) -> None:
        """Have the list read ahead of schedule. Does not block."""
        with self._changed:
            self._is_due_soon = True
            self._changed.notify()

    def close(self) -> None:
        """Stop. A call in progress is left alone."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while not self._closed:
            began, count = time.monotonic(), 0
            # Without the nodes' names everything works, only slower: an authentication error here is not a failure.
            try:
                count = self._read_once()
            except ConnectionLost:
                self._is_due_soon = True
            except DlappError:
                pass
            self._has_first.set()
            self._wait(began, count)

    def _read_once(self) -> int:
        """Read the list, and return its length."""
        nodes = self._read()
        self._receive(nodes)
        return len(nodes)

    def _wait(self, began: float, count: int) -> None:
        """Wait until the next list is due, with jitter between the ApplicationMasters of a cluster."""
        spread = 1.0 + random.random() / 2
        with self._changed:
            while not self._closed:
                due = began + spread * (MIN_INTERVAL_S if self._is_due_soon else max(EVERY_S, EVERY_S_EACH * count))
                remaining_s = due - time.monotonic()
                if remaining_s <= 0:
                    self._is_due_soon = False
                    return
                self._changed.wait(remaining_s)
