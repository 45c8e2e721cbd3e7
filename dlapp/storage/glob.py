"""Hadoop's file patterns, as regular expressions; pure.

    *          any characters, none too        [abc] [a-z]    one of these      {ab,cd}   one of these words
    ?          one character                   [^a] [!a]      one of the others  \\c       the character c itself

No wildcard matches ``/``, ``**`` means ``*``, and a leading dot is a character like any other. Words in braces may
hold slashes and further braces.

Source: org.apache.hadoop.fs.FileSystem.globStatus (its documentation), GlobPattern, GlobExpander.
"""

from __future__ import annotations

import itertools
import re

from dlapp.errors import UsageError
from dlapp.system.text import shown

_WILD = frozenset("*?[{")
MOST_ALTERNATIVES = 1000
"""Each is looked for by itself."""
MOST_CHARACTERS = 4096


def split_pattern(pattern: str) -> list[list[str | re.Pattern[str]]]:
    """The alternatives of an absolute pattern, each a list of path components: text to take as it is, or what to match.

    Raises:
        UsageError: brackets or braces that do not close, a range that runs backwards, a backslash at the end; it is
            longer than `MOST_CHARACTERS`, or stands for more than `MOST_ALTERNATIVES` patterns without braces.
    """
    if len(pattern) > MOST_CHARACTERS:
        raise UsageError(f"the pattern {shown(pattern)} has {len(pattern)} characters, at most {MOST_CHARACTERS}")
    return [_components(path) for path in _expand_slashed_braces(pattern)]


def _components(path: str) -> list[str | re.Pattern[str]]:
    found: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del found[-1:]
        elif part not in ("", "."):
            found.append(part)
    return [compile_component(part) for part in found]


def compile_component(part: str) -> str | re.Pattern[str]:
    """One component: without wildcards its text, escapes resolved, else an expression to match fully."""
    out: list[str] = []
    literal: list[str] = []
    wild, depth, at = False, 0, 0
    while at < len(part):
        char = part[at]
        at += 1
        wild = wild or char in _WILD
        if char == "\\":
            if at == len(part):
                raise UsageError(f"the pattern {part!r} ends in a backslash")
            literal.append(part[at])
            out.append(re.escape(part[at]))
            at += 1
            continue
        literal.append(char)
        if char == "*":
            out.append(".*")
        elif char == "?":
            out.append(".")
        elif char == "[":
            chars, at = _character_class(part, at)
            out.append(chars)
        elif char == "{":
            depth += 1
            out.append("(?:")
        elif char == "}" and depth:
            depth -= 1
            out.append(")")
        elif char == "," and depth:
            out.append("|")
        else:
            out.append(re.escape(char))
    if depth:
        raise UsageError(f"the pattern {part!r} has a '{{' that does not close")
    if not wild:
        return "".join(literal)
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error as error:
        raise UsageError(f"the pattern {part!r}: {error.msg}") from error


def _character_class(part: str, at: int) -> tuple[str, int]:
    """The expression for the class whose ``[`` stands before ``at``, and the place after its ``]``."""
    out = ["["]
    if part[at : at + 1] in ("^", "!"):
        out.append("^")
        at += 1
    first = True
    while at < len(part):
        char = part[at]
        at += 1
        if char == "]" and not first:
            return "".join([*out, "]"]), at
        if char == "\\" and at < len(part):
            char = "\\" + part[at]
            at += 1
            out.append(re.escape(char[1]))
        elif char == "-" and not first and out[-1] != "-" and part[at : at + 1] not in ("", "]"):
            out.append("-")  # of a range; one that follows it is its end
        else:
            out.append(re.escape(char))
        first = False
    raise UsageError(f"the pattern {part!r} has a '[' that does not close")


def _expand_slashed_braces(pattern: str) -> list[str]:
    """Write out the first braces that hold a slash, and so on; components can be told apart only then."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        one = waiting.pop()
        found = _slashed_braces(one)
        if found is None:
            done.append(one)
        else:
            start, end, commas = found
            edges = [start, *commas, end]
            words = [one[a + 1 : b] for a, b in itertools.pairwise(edges)]
            waiting += [one[:start] + word + one[end + 1 :] for word in reversed(words)]
        if len(done) + len(waiting) > MOST_ALTERNATIVES:
            raise UsageError(f"the pattern {shown(pattern)} stands for more than {MOST_ALTERNATIVES} others")
    return done


def _slashed_braces(pattern: str) -> tuple[int, int, list[int]] | None:
    """Return where the first outermost braces with a slash in them open and close, and their commas; None: there are
    none."""
    start, depth, slashed, at = 0, 0, False, 0
    commas: list[int] = []
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char == "{":
            if depth == 0:
                start, slashed, commas = at, False, []
            depth += 1
        elif char == "}" and depth:
            depth -= 1
            if depth == 0 and slashed:
                return start, at, commas
        elif char == "," and depth == 1:
            commas.append(at)
        elif char == "/" and depth:
            slashed = True
        at += 1
    return None
