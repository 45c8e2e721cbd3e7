"""Test messages of protobuf field by field; the bytes are those of protobuf 5.26."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.hadoop.errors import NotHadoop
from dlapp.hadoop.wire import Fields, encode


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        *[(0, "0800"), (True, "0801"), (300, "08ac02"), (-1, "08ffffffffffffffffff01")],
        *[(0.5, "0d0000003f"), ("é", "0a02c3a9"), (b"", "0a00"), (None, "")],
    ],
)
def test_a_field_is_as_protobuf_encodes_it(value: int | float | str | bytes | None, wire: str) -> None:
    assert encode((1, value)).hex() == wire


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_signed_number_survives(value: int) -> None:
    assert Fields(encode((7, value))).signed(7, bits=64) == value


@pytest.mark.parametrize(
    ("wire", "value"),
    [("ffffffffffffffffff01", -1), ("ffffffff0f", -1), ("80808080f8ffffffff01", -(1 << 31)), ("8080808010", 0)],
)
def test_a_number_of_32_bits_is_cut_as_protobuf_does(wire: str, value: int) -> None:
    """Decode -1 in ten bytes and in five, -2^31, and 2^32."""
    assert Fields(bytes.fromhex(f"08{wire}")).signed(1) == value


def test_missing_fields_have_their_default_or_are_refused() -> None:
    parsed = Fields(b"")
    assert (parsed.signed(1, -1000), parsed.signed(1, -1, bits=64)) == (-1000, -1)
    assert parsed.message(1, b"").signed(2, 0) == 0
    for read in (parsed.signed, parsed.message, parsed.text, parsed.number):
        with pytest.raises(NotHadoop, match="lacks field 3"):
            read(3)


def test_a_field_in_two_forms_has_both_values() -> None:
    """Send the field 3 as the number 4 and as bytes."""
    parsed = Fields(bytes.fromhex("1804 1a0161"))
    assert list(parsed.values(3)) == [4, b"a"]
    assert list(parsed.values(4)) == []
    with pytest.raises(NotHadoop, match="a number below"):
        parsed.signed(3)


@pytest.mark.parametrize("wire", ["080108020803", "0a03010203", "0801 0a020203"])
def test_repeated_numbers_are_read_packed_and_unpacked(wire: str) -> None:
    assert Fields(bytes.fromhex(wire)).numbers(1) == [1, 2, 3]
