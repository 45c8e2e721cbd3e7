from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.errors import UsageError
from dlapp.storage.glob import split_pattern
from dlapp.storage.local import LocalFiles


def component(pattern: str) -> str | re.Pattern[str]:
    """A pattern that is a single component."""
    (parts,) = split_pattern(f"/{pattern}")
    (only,) = parts
    return only


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*", ["a", ".hidden", "", "new\nline"], []),
        ("a*c", ["ac", "abc", "a.*c"], ["abcd", "bac"]),
        ("**", ["anything"], []),
        ("?", ["a", "한", "."], ["", "ab"]),
        ("[abc]x", ["ax", "cx"], ["dx", "x", "[abc]x"]),
        ("[a-c0-9]", ["b", "7"], ["d", "-"]),
        ("[^a]", ["b", "^"], ["a", ""]),
        ("[!a]", ["b", "!"], ["a"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[+--]", ["+", ",", "-"], ["."]),
        ("[a\\]]", ["a", "]"], ["\\"]),
        ("[&&~|[]", ["&", "~", "|", "["], ["a"]),
        ("part-{00,01}", ["part-00", "part-01"], ["part-02", "part-{00,01}"]),
        ("{a,b{c,d}}", ["a", "bc", "bd"], ["b", "c"]),
        ("{,.gz}x", ["x", ".gzx"], ["gzx"]),
        ("a,b}?", ["a,b}c"], ["ab}c"]),
        ("a*b*ab", ["abab", "axbyab", "abbab"], ["ab", "aab", "abba"]),
        ("*a*", ["a", "ba", "bab"], ["b", ""]),
        ("*{a,ab}c", ["ac", "abc", "xabc", "abac"], ["ab", "bc"]),
        ("{a*,*b}{,c}", ["a", "ac", "b", "xbc", "abc"], ["c", "bx"]),
        ("[{]{a,[,]}", ["{a", "{,"], ["{", "{b"]),
        ("\\**", ["*", "*a"], ["a"]),
        ("^$.+()|*", ["^$.+()|", "^$.+()|x"], ["x"]),
    ],
)
def test_a_component_matches_as_hadoop_does(pattern: str, yes: list[str], no: list[str]) -> None:
    expression = component(pattern)
    assert isinstance(expression, re.Pattern)
    assert [name for name in yes + no if expression.fullmatch(name)] == yes


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("plain", "plain"), ("\\*\\[x\\]", "*[x]"), ("a,b}", "a,b}"), ("a\\\\b", "a\\b"), ("]^!", "]^!")],
)
def test_a_component_without_wildcards_is_its_text(pattern: str, text: str) -> None:
    assert component(pattern) == text


@pytest.mark.parametrize("pattern", ["[a", "[]", "{a,b", "a{b{c}", "x\\", "[z-a]"])
def test_a_pattern_that_does_not_close_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="the pattern"):
        component(pattern)


@pytest.mark.parametrize("pattern", ["*a" * 120, "?*" * 120, "{*a,a*,aa}" * 6 + "b", "{a,aa}" * 9 + "*a" * 50 + "b"])
def test_pattern_matching_time_is_not_exponential_in_wildcards(pattern: str) -> None:
    expression = component(pattern)
    assert isinstance(expression, re.Pattern)
    assert not expression.fullmatch("a" * 100 + "c")


def test_braces_that_stand_for_too_many_words_are_refused() -> None:
    for pattern in ("{a,b}" * 10, "/x/" + "/".join(f"{n}" + "{a,bc}" * 9 + "y" * 40 for n in range(40))):
        with pytest.raises(UsageError, match=r"more than 1000 others|too many words"):
            split_pattern(pattern)


@given(st.text(min_size=1, max_size=20).filter(lambda text: "/" not in text))
def test_an_escaped_name_matches_itself_and_a_pattern_never_breaks(text: str) -> None:
    assert component("".join("\\" + char for char in text)) == text
    with contextlib.suppress(UsageError):
        split_pattern(f"/{text}")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in ("a/1.txt", "a/2.txt", "a/.hidden", "b/1.txt", "b/c/3.txt", "d e/50% #1+2", "[x]/{y}", "na\nme/z"):
        path = tmp_path / "lake" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "lake" / "to b").symlink_to("b")
    (tmp_path / "lake" / "nowhere").symlink_to("missing")
    return tmp_path / "lake"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a/*", ["a/.hidden", "a/1.txt", "a/2.txt"]),
        ("*/1.txt", ["a/1.txt", "b/1.txt", "to b/1.txt"]),
        ("{a,b/c}/*.txt", ["a/1.txt", "a/2.txt", "b/c/3.txt"]),
        ("{a,b/{c,x}}/?.txt", ["a/1.txt", "a/2.txt", "b/c/3.txt"]),
        ("b", ["b"]),
        ("b/", ["b"]),
        ("./a/../b//c/.", ["b/c"]),
        ("d e/50% #1+2", ["d e/50% #1+2"]),
        ("\\[x\\]/\\{y\\}", ["[x]/{y}"]),
        ("na\nme/*", ["na\nme/z"]),
        ("nowhere", ["nowhere"]),
        ("none", []),
        ("a/1.txt/x", []),
        ("none/*", []),
        ("*/none", []),
    ],
)
def test_patterns_match_like_in_hdfs(lake: Path, pattern: str, found: list[str]) -> None:
    entries = LocalFiles().matches(f"file://{lake}/{pattern}")
    assert [entry.location for entry in entries] == [f"file://{lake}/{name}" for name in found]
    for entry in entries:
        path = Path(entry.location.removeprefix("file://"))
        assert entry.is_dir == path.is_dir()
        assert entry.size_bytes == (path.stat().st_size if path.is_file() else 0)
