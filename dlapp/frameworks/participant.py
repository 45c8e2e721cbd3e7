"""A container of a framework's training, and how others reach it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dlapp.values.roster import Member, Roster
from dlapp.values.spec import Resources


class Participant(NamedTuple):
    """A container that takes part: its entry in the roster of all that do, its resources, and the variables of the
    properties file, which are never overridden.
    """

    roster: Roster
    member: Member
    resources: Resources
    user: Mapping[str, str]


def endpoint(member: Member) -> str:
    """Return the address and first port of a member for a URL, with an IPv6 address in brackets."""
    return f"{bracketed(member.address)}:{member.ports[0]}"


def bracketed(address: str) -> str:
    """Return an address for use before a port."""
    return f"[{address}]" if ":" in address else address
