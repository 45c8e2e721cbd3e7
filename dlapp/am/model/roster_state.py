"""Known addresses of an application's containers; `dlapp.am.model.roster` changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.value import Record, field
from dlapp.values.roster import Member

if TYPE_CHECKING:
    from dlapp.am.model.instance import Container


class RosterState(Record, kw_only=True):
    """Known addresses of an application's containers.

    Attributes:
        exists: the containers get a roster.
        is_known: all members known to an earlier attempt are known.
        number: number of the roster that tasks must have (`Orders.roster`); 0: none yet.
        announced: the number that was sent to all tasks with running payloads.
        members: by index.
        places: index -> the container whose address it is.
        is_changed: the members differ from roster ``number``.
        quiet_until_ms: when tasks with running payloads get the next change [ms of time awake].
    """

    exists: bool
    is_known: bool
    number: int = 0
    announced: int = 0
    members: dict[int, Member] = field(default_factory=dict)
    places: dict[int, Container] = field(default_factory=dict)
    is_changed: bool = False
    quiet_until_ms: int = 0
