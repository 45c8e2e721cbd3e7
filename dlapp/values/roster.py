"""Roster of an application: the addresses of its containers, by which payloads connect to each other."""

from __future__ import annotations

import contextlib

from dlapp.errors import SpecError
from dlapp.value import Value
from dlapp.values.spec import check_role_name


class Member(Value, kw_only=True):
    """One container as its peers see it.

    Args:
        role_index: DLAPP_ROLE_INDEX; ``index`` is CONTAINER_INDEX.
        host: name of its host, as reported by the engine; peers may be unable to resolve it.
        address: IPv4 or IPv6 address at which peers connect to it, without brackets.
        ports: TCP ports on ``address`` that are locked for it, in the order of the role's port numbers.

    Raises:
        SpecError: a value is invalid.
    """

    role: str
    role_index: int
    index: int
    host: str
    address: str
    ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # A task writes the role and the address into a line of its payload's file of hosts.
        check_role_name("role", self.role)
        if not is_address(self.address):
            raise SpecError("address", f"{self.address[:40]!r} is not an IPv4 or IPv6 address")
        if not all(0 < port < 1 << 16 for port in self.ports):
            raise SpecError("ports", "has a number that is not a port")


class Roster(Value, kw_only=True):
    """All members of one generation.

    Args:
        generation: DLAPP_GENERATION; grows with each restart of the gang.
        version: grows when a single member is replaced; 0 at the start of each generation.
        members: in the order of their indexes.
    """

    generation: int
    version: int
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        if self.generation < 0:
            raise SpecError("generation", f"is {self.generation}, the minimum is 0")

    def of_role(self, role: str) -> tuple[Member, ...]:
        """Return the members of a role, in the order of their role indexes."""
        return tuple(one for one in self.members if one.role == role)

    def at(self, index: int) -> Member:
        """Return the member with a CONTAINER_INDEX.

        Raises:
            LookupError: there is no such member.
        """
        for one in self.members:
            if one.index == index:
                return one
        raise LookupError(f"container {index} is not in the roster")


def is_address(text: object) -> bool:
    """Return whether a text is an IPv4 or IPv6 address in its usual form, without brackets and without a zone."""
    if not isinstance(text, str):
        return False
    import socket  # takes a submission 10 ms, which asks for no address

    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            return socket.inet_ntop(family, socket.inet_pton(family, text)) == text
    return False
