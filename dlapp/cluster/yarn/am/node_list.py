"""The nodes of the cluster, read in a thread of their own: of 10,000 nodes they are 2.8 MB, and take seconds to parse.

What changes comes with the heartbeats. The whole list is read at the start, after a restart of the ResourceManager, and
now and then for what was missed.
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
"""Between two lists, and for each node in it where that is more: its 280 bytes are 0.09 MB a minute, however many nodes
there are. A list of 10,000 nodes comes every 33 to 50 minutes."""
LEAST_S = 30.0
"""Between two lists, whatever happens."""
FIRST_TIMEOUT_S = 5.0


class NodeList:
    """Reads the nodes of the cluster again and again.

    Args:
        read: returns them.
        take: called with them, from a thread of ours.
    """

    def __init__(self, read: Callable[[], Sequence[NodeReport]], take: Callable[[Sequence[NodeReport]], None]) -> None:
        self._read, self._take = read, take
        self._changed = threading.Condition()
        self._has_first = threading.Event()
        self._is_wanted = self._closed = False
        self._thread = threading.Thread(target=self._run, name="am-node-list", daemon=True)

    def start(self) -> None:
        """Begin, and wait a moment for the first list: asks that name hosts are met sooner."""
        self._thread.start()
        self._has_first.wait(FIRST_TIMEOUT_S)

    def read_soon(self) -> None:
        """Let the list be read before its time. Returns at once."""
        with self._changed:
            self._is_wanted = True
            self._changed.notify()

    def close(self) -> None:
        """End. A call under way is left alone."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while not self._closed:
            began, count = time.monotonic(), 0
            # Without the nodes' names everything works, only slower: a cluster that wants proof for them is no fault.
            try:
                count = self._read_once()
            except ConnectionLost:
                self._is_wanted = True
            except DlappError:
                pass
            self._has_first.set()
            self._wait(began, count)

    def _read_once(self) -> int:
        """Read the list, and return its length."""
        nodes = self._read()
        self._take(nodes)
        return len(nodes)

    def _wait(self, began: float, count: int) -> None:
        """Wait until the next list is due; the ApplicationMasters of a cluster do not all come at the same moment."""
        spread = 1.0 + random.random() / 2
        with self._changed:
            while not self._closed:
                due = began + spread * (LEAST_S if self._is_wanted else max(EVERY_S, EVERY_S_EACH * count))
                left = due - time.monotonic()
                if left <= 0:
                    self._is_wanted = False
                    return
                self._changed.wait(left)
