"""Reading what people write: amounts with units, booleans, counts, and the nearest right name for a wrong one.

The configuration and the properties file are read with the same functions, so `4g` and `2h` mean one thing everywhere.
Each raises ValueError with the problem alone (``'4x' is no memory: ...``); the caller says where it stood.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER_AND_UNIT = re.compile(r"(\d{1,18})[ \t]*([A-Za-z]*)", re.ASCII)
_DECIMAL_AND_UNIT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)[ \t]*([A-Za-z]*)", re.ASCII)
_COUNT = re.compile(r"[+-]?\d{1,30}", re.ASCII)

_BYTES = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

MOST_SECONDS = 100 * 365 * 86400
"""A hundred years: above it, times in milliseconds since 1970 and waits of the kernel would no longer fit."""
MOST_BYTES = 1 << 60
_LISTED = 60


def read_count(text: str, least: int = 0, most: int = 2**31 - 1) -> int:
    """A whole number from ``least`` to ``most``."""
    if not _COUNT.fullmatch(text):
        raise ValueError(f"{shown(text)} is not a whole number")
    value = int(text)
    if value < least:
        raise ValueError(f"is {value}, the least is {least}")
    if value > most:
        raise ValueError(f"is {value}, the most is {most}")
    return value


def read_memory_mib(text: str) -> int:
    """An amount of memory [MiB]: ``512m``, ``4g``, ``1t``, ``2048k``; a bare number is MiB."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    unit = match[2].lower() if match else "?"
    if match is None or unit not in ("", "k", "m", "g", "t"):
        raise ValueError(
            f"{shown(text)} is not an amount of memory: a whole number of MiB, or one with k, m, g or t (4g)"
        )
    size_bytes = int(match[1]) * _BYTES[unit or "m"]
    if size_bytes == 0:
        raise ValueError("is 0, the least is 1 MiB")
    if size_bytes % _BYTES["m"]:
        raise ValueError(f"{shown(text)} is not a whole number of MiB")
    if size_bytes > MOST_BYTES:
        raise ValueError(f"is {text}, the most is {MOST_BYTES >> 40}t")
    return size_bytes >> 20


def read_size_bytes(text: str) -> int:
    """A size [bytes]: ``500b``, ``64k``, ``10g``. The unit is required, so that nobody takes MiB for bytes."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    unit = match[2].lower() if match else "?"
    if match is None or unit not in _BYTES:
        raise ValueError(f"{shown(text)} is not a size: a whole number with b, k, m, g or t (10g)")
    if (size_bytes := int(match[1]) * _BYTES[unit]) > MOST_BYTES:
        raise ValueError(f"is {text}, the most is {MOST_BYTES >> 40}t")
    return size_bytes


def read_duration_s(text: str) -> float:
    """A span of time [s]: ``30s``, ``10m``, ``2h``, ``1d``, ``0.5s``; a bare number is seconds."""
    match = _DECIMAL_AND_UNIT.fullmatch(text)
    unit = match[2].lower() if match else "?"
    if match is None or unit not in _SECONDS:
        raise ValueError(f"{shown(text)} is not a duration: a number of seconds, or one with s, m, h or d (30s, 2h)")
    if (seconds := float(match[1]) * _SECONDS[unit]) > MOST_SECONDS:
        raise ValueError(f"is {text}, the most is {MOST_SECONDS // 86400}d")
    return seconds


def read_boolean(text: str) -> bool:
    """``true`` or ``false``."""
    if text not in ("true", "false"):
        raise ValueError(f"is {shown(text)}, allowed are true, false")
    return text == "true"


def read_choice(text: str, allowed: Iterable[str]) -> str:
    """One of the words in ``allowed``."""
    if text not in (words := list(allowed)):
        raise ValueError(f"is {shown(text)}, allowed are {', '.join(words)}")
    return text


def nearest(word: str, allowed: Iterable[str]) -> str:
    """What to say of an unknown name: ``, nearest is 'memory'`` or, with nothing near, ``, known are ...``."""
    import difflib  # only on the way to an error: it costs 5 ms

    names = list(allowed)
    by_folded = {name.lower(): name for name in names}
    if close := difflib.get_close_matches(word[:100].lower(), list(by_folded), n=1, cutoff=0.5):
        return f"the nearest is {by_folded[close[0]]}"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"known are {', '.join(names[:_LISTED])}{more}"


def shown(text: str, most: int = 60) -> str:
    """Text in quotes for a message: escaped, and cut where it is long."""
    return repr(text) if len(text) <= most else repr(text[:most]) + "..."
