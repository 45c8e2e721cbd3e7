"""The control address of an ApplicationMaster on a cluster, in a process of its own, whose memory tests look at.

Prints its port; whoever runs it closes its standard input to end it. Reports are answered at once, pages have 20 KB,
as those of an application of a hundred containers.
"""

from __future__ import annotations

import sys
import threading
from queue import SimpleQueue

from dlapp.am.control.server import ControlEndpoint, ControlRequest, RequestKind
from dlapp.values.messages import Orders
from dlapp.values.serialization import to_json

SECRET = "5e" * 32


def main() -> int:
    """Answer until nobody wants answers."""
    calls: SimpleQueue[ControlRequest | str | None] = SimpleQueue()
    control = ControlEndpoint(SECRET, calls.put, open_page=True)
    with control.server:
        print(control.server.port, flush=True)
        threading.Thread(target=lambda: calls.put(sys.stdin.read() or None), daemon=True).start()
        while isinstance(call := calls.get(), ControlRequest):
            if call.kind is RequestKind.PAGE:
                # As the loop does: a new one, as large as a real one.
                control.server.reply(call.request, 200, "x" * 20_000, "text/html; charset=utf-8")
            else:
                call.answer(to_json(Orders(attempt=1, number=1)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
