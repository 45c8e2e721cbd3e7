"""A path at which nothing is."""

from __future__ import annotations

import os


def missing(name: str = "missing") -> str:
    """Return a path in the home of the running test at which nothing is.

    A fixed path outside it may be the home of a user of this machine, as /nonexistent is of Debian's nobody: a program
    of that user, or of another test, may create it.
    """
    return os.path.join(os.environ["HOME"], name)
