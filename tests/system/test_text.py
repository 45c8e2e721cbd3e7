"""Test what people write: amounts, spans of time, counts."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.system.text import (
    lazy_pattern,
    memory_text,
    nearest,
    read_boolean,
    read_count,
    read_duration_s,
    read_memory_mib,
    read_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        *[("512", 512), ("512m", 512), ("4g", 4096), ("4G", 4096), ("4 g", 4096), ("1t", 1 << 20), ("2048k", 2)],
        *[("4gb", 4096), ("4GB", 4096), ("4 GiB", 4096), ("512MB", 512), ("1.5g", 1536), ("0.5g", 512)],
        *[("1.1g", 1127), ("100k", 1), ("1.5", 2)],
    ],
)
def test_memory_is_mib_or_has_a_unit(text: str, mib: int) -> None:
    assert read_memory_mib(text) == mib


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("4x", "'4x' is not an amount of memory: a number of MiB, or one with k, m, g or t (4g)"),
        ("-4g", "'-4g' is not an amount of memory: "),
        (".5g", "'.5g' is not an amount of memory: "),
        ("4gbit", "'4gbit' is not an amount of memory: "),
        ("", "'' is not an amount of memory: "),
        ("g", "'g' is not an amount of memory: "),
        ("4b4", "'4b4' is not an amount of memory: "),
        ("٤g", "'٤g' is not an amount of memory: "),
        ("0", "is 0, the minimum is 1 MiB"),
        ("9999999999999t", "is 9999999999999t, the maximum is 1048576t"),
        ("9" * 100, f"'{'9' * 60}'... is not an amount of memory: "),
    ],
)
def test_an_invalid_memory_size_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole text is compared
        read_memory_mib(text)
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("30", 30), ("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86400), ("0.5s", 0.5), ("1.5h", 5400), ("0", 0)],
        *[("1h30m", 5400), ("1d 12h", 129600), ("1 h 30 min", 5400), ("90min", 5400), ("2 Hours", 7200)],
    ],
)
def test_a_span_of_time_is_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert read_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-1", "1e3", "nan", "inf", "1w", "1:30", ".5", "5.", "99999999d", "1h30", "30m1h", "1h1h"]
)
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|the maximum is"):
        read_duration_s(text)


def test_a_size_needs_its_unit() -> None:
    assert [read_size_bytes(text) for text in ("7b", "1k", "10g", "1.5 GB")] == [7, 1024, 10 << 30, 3 << 29]
    with pytest.raises(ValueError, match="'10' is not a size: a number with b, k, m, g or t"):
        read_size_bytes("10")


def test_counts_have_bounds_that_the_message_names() -> None:
    assert read_count("+3") == 3
    for text, problem in (
        ("-1", "is -1, the minimum is 0"),
        ("4294967296", "the maximum is 2147483647"),
        ("two", "'two'"),
    ):
        with pytest.raises(ValueError, match=problem):
            read_count(text)


def test_booleans_are_written_as_people_write_them() -> None:
    assert [read_boolean(text) for text in ("true", "True", "YES", "on", "1")] == [True] * 5
    assert [read_boolean(text) for text in ("false", "FALSE", "no", "off", "0")] == [False] * 5


@pytest.mark.parametrize("text", ["", "y", "truth", "2"])
def test_an_invalid_boolean_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed are true, false"):
        read_boolean(text)


def test_the_nearest_name_ignores_case_and_without_one_all_are_named() -> None:
    assert nearest("Memroy", ["memory", "vcores"]) == "the nearest is memory"
    assert nearest("APPLICATION", ["application"]) == "the nearest is application"
    assert nearest("zzz", ["memory", "vcores"]) == "known are memory, vcores"
    assert nearest("zzz", [f"node{i}" for i in range(9000)]).endswith(", node58, node59 and 8940 more")


@given(st.text())
def test_no_text_does_more_than_raise_value_error(text: str) -> None:
    for read in (read_count, read_memory_mib, read_size_bytes, read_duration_s, read_boolean):
        with contextlib.suppress(ValueError):
            assert read(text) >= 0


@pytest.mark.parametrize(
    ("memory_mib", "shown"),
    [(1, "1 MiB"), (1023, "1023 MiB"), (1024, "1 GiB"), (24680, "24.1 GiB"), (1 << 20, "1024 GiB")],
)
def test_memory_is_shown_in_readable_units(memory_mib: int, shown: str) -> None:
    assert memory_text(memory_mib) == shown


def test_a_lazy_pattern_is_compiled_when_it_is_first_used() -> None:
    """An invalid pattern is an error of its first use; a valid one has the methods and attributes of a pattern."""
    wrong, right = lazy_pattern("("), lazy_pattern(r"(a)\.b", re.I)
    with pytest.raises(re.error):
        wrong.fullmatch("a")
    found = right.fullmatch("A.B")
    assert found is not None
    assert (found[1], right.sub("x", "a.b c"), right.pattern, right.search("ab")) == ("A", "x c", r"(a)\.b", None)
