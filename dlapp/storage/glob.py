"""Hadoop's file patterns, as regular expressions; pure functions.

    *          any characters, none too        [abc] [a-z]    one of these      {ab,cd}   one of these words
    ?          one character                   [^a] [!a]      one of the others  \\c       the character c itself

No wildcard matches ``/``, ``**`` means ``*``, and a leading dot is an ordinary character. Alternatives in braces may
contain slashes and further braces.

Source: org.apache.hadoop.fs.FileSystem.globStatus (its documentation), GlobPattern, GlobExpander.
"""

from __future__ import annotations

import itertools
import re

from dlapp.errors import UsageError
from dlapp.system.text import shown

_WILD = frozenset("*?[{")
MAX_ALTERNATIVES = 1000
"""Maximum number of alternatives of a pattern with slashes in braces, each of which is searched separately; also of one
name with braces, each of which is compared separately."""
MAX_CHARACTERS = 4096
MAX_EXPANDED_CHARACTERS = 1 << 18
"""Maximum length of all names of a pattern with their braces expanded; an expression is compiled at 1 us per
character."""


def literal_pattern(location: str) -> str:
    """Return a pattern that matches only this location."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", location)


def escape_wildcards(pattern: str, *, but: str = "") -> str:
    """Return a pattern whose wildcards are escaped; what is escaped already, and the characters ``but``, stay."""
    return re.sub(
        r"\\.|[*?\[\]{}]", lambda one: one[0] if one[0][0] == "\\" or one[0] in but else f"\\{one[0]}", pattern
    )


def split_pattern(pattern: str) -> list[list[str | re.Pattern[str]]]:
    """Return the alternatives of an absolute pattern, each a list of path components: literal text, or a pattern.

    Raises:
        UsageError: unclosed brackets or braces, a reversed range, a trailing backslash; or the pattern is longer than
            `MAX_CHARACTERS`, or expands to more than `MAX_ALTERNATIVES` patterns without braces.
    """
    if len(pattern) > MAX_CHARACTERS:
        raise UsageError(f"the pattern {shown(pattern)} has {len(pattern)} characters, at most {MAX_CHARACTERS}")
    paths = [_components(path) for path in _expand(pattern, slashed=True)]
    compiled: dict[str, str | re.Pattern[str]] = {}
    written_out = 0
    for part in itertools.chain.from_iterable(paths):
        if part not in compiled:
            alternatives = _expand(part)
            written_out += sum(map(len, alternatives))
            if written_out > MAX_EXPANDED_CHARACTERS:
                raise UsageError(f"the pattern {shown(pattern)} has too many words in braces")
            compiled[part] = _compile(part, alternatives)
    return [[compiled[part] for part in parts] for parts in paths]


def _components(path: str) -> list[str]:
    found: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del found[-1:]
        elif part not in ("", "."):
            found.append(part)
    return found


def _compile(part: str, alternatives: list[str]) -> str | re.Pattern[str]:
    """Return one component: without wildcards its text, escapes resolved, else an expression for a full match."""
    expressions, literals, wild = [], [], alternatives != [part]
    for one in alternatives:
        runs, literal, stars = _runs(one)
        literals.append(literal)
        wild = wild or stars
        # Once a run is found, an earlier "*" has no reason to match more, so there is no backtracking. Braces are
        # expanded before, since this does not hold for alternatives. Source: fnmatch.translate of Python.
        first, *middle, last = runs if len(runs) > 1 else [*runs, None]
        between = "".join(f"(?>.*?{run})" for run in middle)
        expressions.append(first if last is None else f"{first}{between}.*{last}")
    if not wild:
        return literals[0]
    try:
        return re.compile("|".join(f"(?:{one})" for one in expressions), re.DOTALL)
    except re.error as error:
        raise UsageError(f"the pattern {part!r}: {error.msg}") from error


def _runs(part: str) -> tuple[list[str], str, bool]:
    """Translate a component without braces.

    Returns:
        Return the expressions before, between and after its stars, its text with escapes resolved, and whether it has
        wildcards.
    """
    runs: list[str] = []
    run: list[str] = []
    literal: list[str] = []
    wild, at = False, 0
    while at < len(part):
        char = part[at]
        at += 1
        wild = wild or char in _WILD
        if char == "\\":
            if at == len(part):
                raise UsageError(f"the pattern {part!r} ends in a backslash")
            char = part[at]
            at += 1
            run.append(re.escape(char))
        elif char == "*":
            if run or not runs:
                runs.append("".join(run))
            run = []
        elif char == "?":
            run.append(".")
        elif char == "[":
            chars, at = _character_class(part, at)
            run.append(chars)
        elif char == "{":
            raise UsageError(f"the pattern {part!r} has a '{{' that does not close")
        else:
            run.append(re.escape(char))
        literal.append(char)
    return [*runs, "".join(run)], "".join(literal), wild


def _character_class(part: str, at: int) -> tuple[str, int]:
    """Return the expression for the class whose ``[`` is before ``at``, and the position after its ``]``."""
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
            out.append("-")  # of a range; the end follows
        else:
            out.append(re.escape(char))
        first = False
    raise UsageError(f"the pattern {part!r} has a '[' that does not close")


def _expand(pattern: str, *, slashed: bool = False) -> list[str]:
    """Expand all braces; with `slashed`, only those that contain a slash: components cannot be separated before."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        one = waiting.pop()
        found = _first_braces(one, slashed)
        if found is None:
            done.append(one)
        else:
            start, end, commas = found
            edges = [start, *commas, end]
            words = [one[a + 1 : b] for a, b in itertools.pairwise(edges)]
            waiting += [one[:start] + word + one[end + 1 :] for word in reversed(words)]
        if len(done) + len(waiting) > MAX_ALTERNATIVES:
            raise UsageError(f"the pattern {shown(pattern)} stands for more than {MAX_ALTERNATIVES} others")
    return done


def _first_braces(pattern: str, slashed: bool) -> tuple[int, int, list[int]] | None:
    """Return the positions of the first outermost braces and their commas; None if there are none.

    Args:
        slashed: only braces that contain a slash. Those inside brackets count, as in Hadoop, which looks for them
            first.
    """
    start, depth, slash, at = 0, 0, False, 0
    commas: list[int] = []
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char == "[" and not slashed:
            at = _character_class(pattern, at + 1)[1] - 1
        elif char == "{":
            if depth == 0:
                start, slash, commas = at, False, []
            depth += 1
        elif char == "}" and depth:
            depth -= 1
            if depth == 0 and (slash or not slashed):
                return start, at, commas
        elif char == "," and depth == 1:
            commas.append(at)
        elif char == "/" and depth:
            slash = True
        at += 1
    return None
