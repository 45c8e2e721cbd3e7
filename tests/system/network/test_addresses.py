"""Addresses by which others reach this machine."""

from __future__ import annotations

import socket

import pytest

from dlapp.errors import NotFound
from dlapp.system.network.addresses import (
    address_of_interface,
    address_towards,
    interface_of,
    is_loopback,
)
from dlapp.values.roster import is_address


def test_the_address_is_that_of_the_way_to_the_other_and_never_a_name() -> None:
    assert address_towards(["127.0.0.1"]) == "127.0.0.1"
    assert address_towards(["::1"]) == "::1"
    assert is_address(address_towards([socket.gethostname(), "localhost"]))


def test_a_remote_host_is_preferred_to_this_machine_for_routes() -> None:
    own = next(
        (found for _, name in socket.if_nameindex() if name != "lo" and (found := _address_or_none(name)) is not None),
        "",
    )
    if not own:
        pytest.skip("this machine has no interface but the loopback")
    assert address_towards(["127.0.0.1", own]) == own


def test_a_missing_route_is_reported() -> None:
    with pytest.raises(NotFound, match=r"no route to nowhere\.invalid"):
        address_towards(["nowhere.invalid"])


def test_an_interface_has_an_address_and_the_address_an_interface() -> None:
    assert address_of_interface("lo") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.1") == ""
    with pytest.raises(NotFound, match="no network interface nosuch0"):
        address_of_interface("nosuch0")


@pytest.mark.parametrize("text", ["10.0.0.1", "::1", "2001:db8::7"])
def test_an_address_is_one(text: str) -> None:
    assert is_address(text)


@pytest.mark.parametrize(
    "text", ["node7", "", "10.0.0", "[::1]", "fe80::1%eth0", "10.0.0.01", "::0001", "1\0", None, 7]
)
def test_unusual_address_forms_are_not_addresses(text: object) -> None:
    assert not is_address(text)


def test_loopback_is_known() -> None:
    assert [is_loopback(value) for value in ("127.0.1.1", "::1", "10.0.0.1", "2001:db8::1")] == [
        True,
        True,
        False,
        False,
    ]


def _address_or_none(name: str) -> str | None:
    try:
        return address_of_interface(name)
    except NotFound:
        return None
