"""Python API: the operations of the commands, for scripts, notebooks and schedulers.

    from dlapp import Client

    client = Client()
    application = client.submit("dl_app.properties")
    view = application.wait()
    print(view.final_status, [one.exit_code for one in view.containers], application.logs())

Every call is idempotent except `submit`, which starts a new application each time. A `Client` may be used by one thread
at a time. It keeps connections to a cluster until `close`, or the end of its ``with`` block; on one machine it has
none.
"""

from __future__ import annotations

from dlapp.client.client import Client as Client
