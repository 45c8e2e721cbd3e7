"""Test how GPUs are written on the wire, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.cluster.yarn.dialect import Dialect, choose_dialect
from dlapp.cluster.yarn.messages import encode_resources, parse_resources
from dlapp.errors import ConfigError, RequestTooLarge
from dlapp.values.spec import Resources

FOUR = Resources(memory_mib=1024, vcores=2, gcores=4)
THREE = Resources(memory_mib=1024, vcores=2, gcores=3)
NO_GPU = Resources(memory_mib=1024, vcores=2)


@pytest.mark.parametrize(
    ("dialect", "resources", "wire"),
    [
        (Dialect.FIELD3, FOUR, "08 8008 10 02 18 04"),
        (Dialect.FIELD3, Resources(memory_mib=1024, vcores=2, gcores=200), "08 8008 10 02 18 c801"),
        (Dialect.GCORES, THREE, "08 8008 10 02 1a 0a 0a06 67636f726573 10 03"),
        (Dialect.YARN_GPU, THREE, "08 8008 10 02 1a 0f 0a0b 7961726e2e696f2f677075 10 03"),
        *[(dialect, NO_GPU, "08 8008 10 02") for dialect in Dialect],
    ],
)
def test_an_ask_is_written_byte_for_byte(dialect: Dialect, resources: Resources, wire: str) -> None:
    assert encode_resources(resources, dialect) == bytes.fromhex(wire)
    assert parse_resources(bytes.fromhex(wire), dialect) == resources


@pytest.mark.parametrize(
    ("dialect", "wire", "gcores"),
    [
        # What a Hadoop 3 sends: every type that it knows, zeros included.
        (
            Dialect.GCORES,
            "08 8008 10 02 1a 12 0a09 6d656d6f72792d6d62 10 8008 1a02 4d69 1a 0e 0a06 67636f726573 10 03 1a00 20 00",
            3,
        ),
        (Dialect.GCORES, "08 8008 10 02 18 04", 0),
        (Dialect.FIELD3, "08 8008 10 02 1a 0a 0a06 67636f726573 10 03", 0),
        (Dialect.FIELD3, "08 8008 10 02 18 04 1a 0a 0a06 67636f726573 10 03", 4),
        (Dialect.FIELD3, "18 02 08 8008 10 02", 2),
        (Dialect.NONE, "08 8008 10 02 1a 0a 0a06 67636f726573 10 03", 0),
    ],
)
def test_an_answer_in_another_form_is_read_by_the_dialect(dialect: Dialect, wire: str, gcores: int) -> None:
    assert parse_resources(bytes.fromhex(wire), dialect).gcores == gcores


@given(
    st.builds(
        Resources,
        memory_mib=st.integers(1, 2**31 - 1),
        vcores=st.integers(1, 2**31 - 1),
        gcores=st.integers(0, 2**31 - 1),
    )
)
@pytest.mark.parametrize("dialect", [Dialect.GCORES, Dialect.YARN_GPU, Dialect.FIELD3])
def test_every_amount_survives(dialect: Dialect, resources: Resources) -> None:
    assert parse_resources(encode_resources(resources, dialect), dialect) == resources


def test_gpus_where_none_are_counted_are_refused_with_the_setting() -> None:
    with pytest.raises(RequestTooLarge, match=r"asked for 4 gcores, .*yarn\.dialect: none"):
        encode_resources(FOUR, Dialect.NONE)


def test_an_empty_message_is_the_least_container() -> None:
    assert parse_resources(b"", Dialect.GCORES) == Resources(memory_mib=1, vcores=1)


HADOOP_2: tuple[str, ...] = ()
STOCK_3 = ("memory-mb", "vcores")


@pytest.mark.parametrize(
    ("configured", "types", "field3", "chosen"),
    [
        ("auto", (*STOCK_3, "gcores"), False, Dialect.GCORES),
        ("auto", (*STOCK_3, "yarn.io/gpu"), False, Dialect.YARN_GPU),
        ("auto", HADOOP_2, True, Dialect.FIELD3),
        ("auto", STOCK_3, False, Dialect.NONE),
        ("yarn.io/gpu", (*STOCK_3, "gcores", "yarn.io/gpu"), False, Dialect.YARN_GPU),
        ("field3", HADOOP_2, False, Dialect.FIELD3),
        ("none", (*STOCK_3, "gcores"), False, Dialect.NONE),
    ],
)
def test_the_dialect_is_configured_or_detected_from_the_cluster(
    configured: str, types: tuple[str, ...], field3: bool, chosen: Dialect
) -> None:
    assert choose_dialect(configured, types, has_field3=field3) is chosen


@pytest.mark.parametrize(
    ("configured", "types", "words"),
    [
        ("auto", ("gcores", "yarn.io/gpu"), "has gcores and yarn.io/gpu; name the one"),
        ("gcores", STOCK_3, "is gcores, and the ResourceManager counts memory-mb, vcores"),
        ("yarn.io/gpu", HADOOP_2, "counts memory and vcores alone"),
        ("field3", ("gcores",), "counts gcores as a resource type"),
        ("gpu", STOCK_3, "is 'gpu', allowed are auto, gcores"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(configured: str, types: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=f"yarn.dialect: .*{words}"):
        choose_dialect(configured, types, has_field3=False)
