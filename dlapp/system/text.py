"""Parsing user input: amounts with units, booleans, counts, and suggestions for wrong names.

The configuration and the properties file use the same functions, so `4g` and `2h` mean the same everywhere. Each raises
ValueError with the problem only (``'4x' is no memory: ...``); the caller adds the location.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, AnyStr


class _LazyPattern:
    def __init__(self, pattern: Any, flags: int) -> None:
        self._source = pattern, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._source), name)
        setattr(self, name, value)  # from now on Python finds it without this method
        return value


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern that is compiled when it is first used.

    For patterns of modules that every process loads: a task needs 10 of 50, and each takes 0.1 to 0.5 ms to compile.
    """
    return _LazyPattern(pattern, flags)  # type: ignore[return-value]


_SIZE = lazy_pattern(r"(\d{1,18})(?:\.(\d{1,9}))?[ \t]*([A-Za-z]*)", re.ASCII)
_SPAN = lazy_pattern(r"(\d{1,15}(?:\.\d{1,9})?)[ \t]*([A-Za-z]*)[ \t]*", re.ASCII)
_COUNT = lazy_pattern(r"[+-]?\d{1,30}", re.ASCII)

_BYTES = {
    name: 1 << (10 * power)
    for power, names in enumerate(("b", "k kb kib", "m mb mib", "g gb gib", "t tb tib"))
    for name in names.split()
}
_SECONDS = {
    name: seconds
    for seconds, names in (
        (86400, "d day days"),
        (3600, "h hr hrs hour hours"),
        (60, "m min mins minute minutes"),
        (1, "s sec secs second seconds"),
    )
    for name in names.split()
}
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

MAX_SECONDS = 100 * 365 * 86400
"""A hundred years: above it, times in milliseconds since 1970 and waits of the kernel would no longer fit."""
MAX_BYTES = 1 << 60
ALL_NAMES = "known are"
"""Begins a hint on an unknown name that has no similar one."""
_LISTED = 60
_DOUBLE_QUOTED = lazy_pattern(r'"[^"]*"')
_BRACKETS = lazy_pattern("|".join(rf"\{pair[0]}[^\[\](){{}}]*\{pair[1]}" for pair in ("[]", "()", "{}")))
_ONE_ITEM = lazy_pattern("|".join(rf"\{pair[0]}[^\[\](){{}},\n]*\{pair[1]}" for pair in ("[]", "()", "{}")))
"""Brackets without brackets in them; and also without separators of a list."""


def read_count(text: str, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
    """Parse a whole number from ``minimum`` to ``maximum``."""
    if not _COUNT.fullmatch(text):
        raise ValueError(f"{shown(text)} is not a whole number")
    value = int(text)
    if value < minimum:
        raise ValueError(f"is {value}, the minimum is {minimum}")
    if value > maximum:
        raise ValueError(f"is {value}, the maximum is {maximum}")
    return value


def read_memory_mib(text: str) -> int:
    """Parse an amount of memory [MiB], rounded up: ``512m``, ``4g``, ``4GB``, ``1.5g``, ``2048k``; a bare number is
    MiB.
    """
    size_bytes = _size_bytes(text, bare="m")
    if size_bytes is None:
        raise ValueError(f"{shown(text)} is not an amount of memory: a number of MiB, or one with k, m, g or t (4g)")
    if size_bytes == 0:
        raise ValueError("is 0, the minimum is 1 MiB")
    return -(-size_bytes >> 20)


def read_size_bytes(text: str) -> int:
    """Parse a size [bytes]: ``500b``, ``64k``, ``10g``, ``1.5GB``. A bare number is refused, because it could mean
    MiB.
    """
    size_bytes = _size_bytes(text, bare="")
    if size_bytes is None:
        raise ValueError(f"{shown(text)} is not a size: a number with b, k, m, g or t (10g)")
    return size_bytes


def read_limit_bytes(text: str) -> int:
    """Parse a size [bytes] like `read_size_bytes`, or ``0``, which allows nothing."""
    return 0 if text == "0" else read_size_bytes(text)


def _size_bytes(text: str, *, bare: str) -> int | None:
    """Read a number with a unit of a power of 1024.

    Args:
        text: as written.
        bare: unit of a number without one; empty if a unit is required.

    Returns:
        Bytes, rounded up; None if it is not a size.

    Raises:
        ValueError: it is too large.
    """
    match = _SIZE.fullmatch(text)
    factor = _BYTES.get(match[3].lower() or bare) if match else None
    if match is None or factor is None:
        return None
    decimals = match[2] or ""
    size_bytes: int = -(-int(match[1] + decimals) * factor // 10 ** len(decimals))
    if size_bytes > MAX_BYTES:
        raise ValueError(f"is {text}, the maximum is {MAX_BYTES >> 40}t")
    return size_bytes


def read_duration_s(text: str, minimum_s: float = 0.0) -> float:
    """Parse a duration [s]: ``30s``, ``10m``, ``2h``, ``1h30m``, ``1d 12h``, ``90min``; a bare number is seconds."""
    seconds, last, at = 0.0, float("inf"), 0
    while match := _SPAN.match(text, at):
        whole = match.span() == (0, len(text))
        unit = _SECONDS.get(match[2].lower() or ("s" if whole else ""), 0)
        if not 0 < unit < last:
            break
        seconds, last, at = seconds + float(match[1]) * unit, unit, match.end()
    if at < len(text) or not text:
        raise ValueError(
            f"{shown(text)} is not a duration: a number of seconds, or numbers with d, h, m or s (30s, 2h, 1h30m)"
        )
    if seconds > MAX_SECONDS:
        raise ValueError(f"is {text}, the maximum is {MAX_SECONDS // 86400}d")
    if seconds < minimum_s:
        raise ValueError(f"is {seconds:g} s, the minimum is {minimum_s:g} s")
    return seconds


def read_boolean(text: str) -> bool:
    """Parse a boolean: ``true`` or ``false``; ``yes``, ``no``, ``on``, ``off``, ``1`` and ``0`` mean the same, ignoring
    case.
    """
    if (value := _BOOLEANS.get(text.lower())) is None:
        raise ValueError(f"is {shown(text)}, allowed are true, false")
    return value


def read_choice(text: str, allowed: Iterable[str]) -> str:
    """Parse one of the words in ``allowed``."""
    if text not in (words := list(allowed)):
        raise ValueError(f"is {shown(text)}, allowed are {', '.join(words)}")
    return text


def refuse_brackets(text: str, *, can_quote: bool = False) -> None:
    """Refuse brackets around the items of a list, as in YAML and JSON, and a comma in brackets, which would split them.

    Args:
        text: the text of a list, whose items are separated by commas or lines.
        can_quote: items may be in double quotes. Then brackets around a single item are refused, too.
    """
    left, before = _DOUBLE_QUOTED.sub(lambda found: "_" * len(found[0]), text), ""
    found = _BRACKETS.fullmatch(left) if can_quote else None
    while found is None and left != before:
        before, left = left, _ONE_ITEM.sub(lambda one: "_" * len(one[0]), left)
    if (found := found or _BRACKETS.search(left)) is None:
        return
    if found.span() == (0, len(text)):
        items = ", ".join(line.strip(" \t,") for line in text[1:-1].strip().split("\n"))
        raise ValueError(f"has brackets around its items, as in YAML and JSON: write {items} without brackets")
    quote = "; write an item with a comma in double quotes" if can_quote else ""
    raise ValueError(f"has {shown(text[slice(*found.span())])}, whose comma separates two items{quote}")


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return the end of a message on an unknown name: ``, nearest is 'memory'`` or, without a similar one, ``, known
    are ...``."""
    import difflib  # only for an error: it costs 5 ms

    names = list(allowed)
    by_folded = {name.lower(): name for name in names}
    if close := difflib.get_close_matches(word[:100].lower(), list(by_folded), n=1, cutoff=0.5):
        return f"the nearest is {by_folded[close[0]]}"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{ALL_NAMES} {', '.join(names[:_LISTED])}{more}"


def counted(count: int, plural: str) -> str:
    """Return a count with its noun, with a plural in ``s``: ``1 gcore``, ``2 gcores``."""
    return f"{count} {plural.removesuffix('s') if count == 1 else plural}"


def shown(text: str, maximum: int = 60) -> str:
    """Quote a text for a message: escaped, and cut if it is long."""
    return repr(text) if len(text) <= maximum else repr(text[:maximum]) + "..."


def first_repeated(texts: Sequence[str]) -> str | None:
    """Return the first duplicate text; None if all are different."""
    last = {text: place for place, text in enumerate(texts)}
    return next((text for place, text in enumerate(texts) if last[text] != place), None)


def human_size(size_bytes: float) -> str:
    """Return a size as text: ``512 bytes``, ``1.5 GiB``."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} bytes"
    units = ["KiB", "MiB", "GiB", "TiB"]
    while size_bytes >= 1024 * 1024 and len(units) > 1:
        size_bytes /= 1024
        del units[0]
    return f"{size_bytes / 1024:.1f} {units[0]}"


def memory_text(memory_mib: int) -> str:
    """Return a rounded amount of memory: ``512 MiB``, ``24.1 GiB``."""
    return f"{memory_mib} MiB" if memory_mib < 1024 else f"{round(memory_mib / 1024, 1):g} GiB"


def short_duration(seconds: int) -> str:
    """Return a duration in its largest whole unit: ``40 s``, ``12 min``, ``3 h``, ``5 d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def xids_text(count_by_code: Mapping[Any, int]) -> str:
    """Return Xid errors of GPUs with their numbers, by code: ``Xid 31 (12 times), Xid 63``; empty: there were none."""
    pairs = sorted((int(code), count) for code, count in count_by_code.items())
    return ", ".join(f"Xid {code}" + (f" ({count} times)" if count > 1 else "") for code, count in pairs)
