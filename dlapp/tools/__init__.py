"""The commands, a file each: parse, call `dlapp.client`, print. What they print is made in `display/`.

Nothing but click and `common` is imported before a command runs, so that ``--help`` is quick and ``dlapp-status``
pays only for what it shows. click is loaded here without garbage collections, which would find nothing.
"""

from __future__ import annotations

from dlapp.system.processes.loading import loading

with loading():
    import click  # noqa: F401
