"""A range of TCP ports, as an operator writes it."""

from __future__ import annotations

from dlapp.value import NamedTuple

_MIN_PORT, _MAX_PORT = 1024, 65_535


class PortRange(NamedTuple):
    """Ports from the first to the last, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def read_port_range(text: str) -> PortRange:
    """Return the range of a text such as ``20000-29999``. Raises ValueError with the problem."""
    first, dash, last = text.partition("-")
    if not (dash and first.strip().isdecimal() and last.strip().isdecimal()):
        raise ValueError(f"{text[:60]!r} is not a range of ports such as 20000-29999")
    found = PortRange(int(first), int(last))
    if not _MIN_PORT <= found.first <= found.last <= _MAX_PORT:
        raise ValueError(f"{found} is not a range of ports within {_MIN_PORT}-{_MAX_PORT}")
    return found
