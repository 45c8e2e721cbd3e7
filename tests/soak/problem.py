"""Error that a soak raises."""

from __future__ import annotations


class Problem(Exception):
    """Something that must hold did not; the message says what, and where the files of the round are."""
