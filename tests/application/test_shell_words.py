"""Words as a shell splits them: compared with a real shell, and taken apart by hand where shells differ."""

from __future__ import annotations

import shutil
import string
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlapp.application.shell_words import split_words
from tests.tiers import some


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-gpu all", ("-gpu", "all")),
        ("", ()),
        (" \t\n", ()),
        ("a  b\tc\nd", ("a", "b", "c", "d")),
        ("' '", (" ",)),
        ("'  '", ("  ",)),
        ("'\t'", ("\t",)),
        ("'\n'", ("\n",)),
        (r"$'\n' $'\t' $'a\\b' $'it\'s' $'\"'", ("\n", "\t", "a\\b", "it's", '"')),
        (r"""'"' "'" \' \" """, ('"', "'", "'", '"')),
        ("'' \"\" $''", ("", "", "")),
        ("a''b", ("ab",)),
        (
            "$HOME ${HOME} $(id) `id` ~ * ? [a] {a,b}",
            ("$HOME", "${HOME}", "$(id)", "`id`", "~", "*", "?", "[a]", "{a,b}"),
        ),
        ('"$HOME" "\\$HOME" "a\\b" "a\\\nb"', ("$HOME", "$HOME", "a\\b", "ab")),
        ("a;b a&b a|b a>b <a (a) #a !a", ("a;b", "a&b", "a|b", "a>b", "<a", "(a)", "#a", "!a")),
        ("안녕 '안녕 하세요'", ("안녕", "안녕 하세요")),
        ("안\u3000녕 a\u00a0b", ("안\u3000녕", "a\u00a0b")),
        ("a\\ b a\\\nb \\\n c", ("a b", "ab", "c")),
        (r"$'\xea\xb0\x80\uac00\U0001f600\101\e\cA\q'", ("가가😀A\x1b\x01\\q",)),
        ("$ a$ $a'b c'", ("$", "a$", "$ab c")),
        ('$"a b"', ("$a b",)),
    ],
)
def test_text_is_split_like_in_a_shell_without_expansion(text: str, words: tuple[str, ...]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("it's", "the quote ' before 's' does not close"),
        ('a "b c', "the quote \" before 'b c' does not close"),
        ("$'abc", "the quote $' before 'abc' does not close"),
        ("'" + "x" * 30, f"the quote ' before '{'x' * 20}'... does not close"),
        ('"\\', "the quote \" before '\\\\' does not close"),
        ("a\\", "ends with a backslash that nothing follows"),
        (r"$'\0'", "has a NUL in it, which no argument can have"),
        (r"$'\x00'", "has a NUL in it, which no argument can have"),
        (r"$'\c@'", "has a NUL in it, which no argument can have"),
        (r"$'\xff'", "is not UTF-8 once its escapes are resolved"),
        (r"$'\ud800'", "\\ud800 is not a character"),
        (r"$'\U00110000'", "\\U00110000 is not a character"),
    ],
)
def test_text_that_cannot_be_split_is_refused_with_the_position(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole text is compared
        split_words(text)
    assert problem in str(refused.value)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
@example([string.punctuation, " ", "  ", "\t", "\n", "'", '"', "$HOME", "한글", ""])
def test_text_quoted_by_shlex_is_split_back_unchanged(words: list[str]) -> None:
    import shlex

    assert split_words(shlex.join(words)) == tuple(words)


pieces = st.sampled_from(["a", "b", " ", "'", '"', "\\", "\n", "\t", "$'", "\\n", "\\'", '\\"', "\\x4", "\\101", "é"])


@settings(max_examples=some(60))
@given(st.lists(pieces, max_size=15).map("".join))
@example(r"$'\x41\n\t\\\'' 'a'\''b' \"")
@example("a\\\nb \\\n")
def test_bash_splits_the_same_text_into_the_same_words(text: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    try:
        words = split_words(text)
    except ValueError:
        return  # what is refused has its own test
    done = subprocess.run(
        [bash, "-c", f"words=({text}\n); ((${{#words[@]}})) && printf '%s\\0' \"${{words[@]}}\""],
        capture_output=True,
        env={"LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
    )
    assert tuple(done.stdout.decode().split("\0")[:-1]) == words, done.stderr


@given(st.text())
def test_no_text_does_more_than_raise_value_error(text: str) -> None:
    try:
        words = split_words(text)
    except ValueError:
        return
    assert all("\0" not in word or "\0" in text for word in words)
