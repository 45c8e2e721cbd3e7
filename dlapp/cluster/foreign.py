"""Views of other users' applications: limits of what is read of them, whatever their owners wrote.

A view costs what its entries cost, some 40 µs each: the 8 MiB of a view may have 80,000 containers, and reading and
showing these took a minute. Only its first entries are read, and a line among the view's ``changes`` says so.
"""

from __future__ import annotations

from typing import Any

from dlapp.errors import SpecError
from dlapp.value import replace
from dlapp.values.report import ApplicationView
from dlapp.values.serialization import from_json

MAX_ENTRIES = 200_000
"""Maximum number of entries that are read of a view. A container with its usage and cost has some 80."""
CUT = "not all is shown: "
"""Start of the line that says what was left out."""
_OBJECT_ENTRIES = 25
"""Entries for which an object in an array counts, besides its own: a value has all fields of its class."""
_MAX_NAMES = 1000
"""Maximum number of entries of one object."""


def read_foreign_view(seen: object) -> ApplicationView:
    """Return another user's view from its JSON form, with `MAX_ENTRIES` at most.

    Raises:
        SpecError: it is not a view.
    """
    cut = _Cut()
    try:
        view = from_json(ApplicationView, cut.first_entries(seen))
    except RecursionError as error:
        raise SpecError("view", "is nested too deeply") from error
    if not cut.is_needed:
        return view
    count = len(seen["containers"]) if isinstance(seen, dict) and isinstance(seen.get("containers"), list) else 0
    line = f"{CUT}another user's view is read up to {MAX_ENTRIES} entries, with {len(view.containers)} of "
    return replace(view, changes=(*view.changes, f"{line}{count} containers"))


class _Cut:
    """Copy of a JSON value without the entries beyond the limit."""

    def __init__(self) -> None:
        self.is_needed = False
        self._left = MAX_ENTRIES

    def first_entries(self, value: object) -> Any:
        """Return a value with its first entries; a field of a value is never left out, only items of arrays."""
        if isinstance(value, dict):
            names = list(value)[:_MAX_NAMES]
            self.is_needed |= len(names) < len(value)
            self._left -= len(names)
            return {name: self.first_entries(value[name]) for name in names}
        if isinstance(value, list):
            found = []
            for item in value:
                self._left -= _OBJECT_ENTRIES if isinstance(item, dict) else 1
                if self._left < 0:
                    self.is_needed = True
                    break
                found.append(self.first_entries(item))
            return found
        return value
