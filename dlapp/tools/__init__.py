"""Commands, one file each: parse, call `dlapp.client`, print. `display/` formats the output.

Only click and `common` are imported before a command runs, so that ``--help`` is fast and ``dlapp-status`` loads only
what it shows. click is imported without garbage collections, which would find nothing.

The directories of PYTHONPATH are searched last: a module of the user there may have the name of one of Python or of a
library. The first import of a command is this package.
"""

from __future__ import annotations

import os
import sys

import dlapp


def _search_pythonpath_last() -> None:
    # dlapp itself may be there, with its libraries.
    own = os.path.dirname(os.path.dirname(os.path.abspath(dlapp.__file__)))
    theirs = {os.path.abspath(one) for one in os.environ["PYTHONPATH"].split(os.pathsep)} - {own}
    sys.path.sort(key=lambda one: os.path.abspath(one) in theirs)


if os.environ.get("PYTHONPATH"):
    _search_pythonpath_last()

from dlapp.system.processes.loading import loading  # noqa: E402

with loading():
    import click  # noqa: F401
