"""Python API: the operations of the commands, for scripts, notebooks and schedulers.

    from dlapp import Client

    client = Client()
    application = client.submit("dl_app.properties")
    view = application.wait()
    print(view.final_status, [one.exit_code for one in view.containers], application.logs())

Every call is idempotent except `submit`, which starts a new application each time. A `Client` may be used by one thread
at a time. It keeps connections to a cluster until `close`, or the end of its ``with`` block; on one machine it has
none.

The methods of `client.Client` are in `operations`, by subject, and `engines` chooses the engine. `streams`, `machine`,
`board`, `notebook` and `shell` have what single commands need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlapp.client.client import Client as Client


def __getattr__(name: str) -> object:
    """Load `Client` when it is first used: commands that only show applications use `operations.views` instead."""
    if name != "Client":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dlapp.client.client import Client

    return Client
