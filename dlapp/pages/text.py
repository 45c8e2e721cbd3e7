"""Amounts and times as text in a page, and lists of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from dlapp.system.text import human_size


class Fact(NamedTuple):
    """One amount: its name, the amount, a remark below it, and shares (0 to 1) of a bar with their CSS classes.

    A fact without a text is left out.
    """

    name: str
    text: str
    remark: str = ""
    shares: Sequence[tuple[str, float]] = ()


def local_time(timestamp_ms: int | None) -> str:
    """Return a time as ``2026-01-31 12:00:00 UTC``, in the time zone of this machine; empty if None or 0: unknown."""
    if not timestamp_ms:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(timestamp_ms / 1000))


def duration(seconds: float) -> str:
    """Return a duration as ``12.5 s``, ``3 min 20 s``, ``5 h 07 min`` or ``3 d 04 h``."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def memory(mib: float) -> str:
    """Return an amount of memory as ``512 MiB`` or ``1.5 GiB``."""
    return size(mib * (1 << 20))


def size(size_bytes: float) -> str:
    """Return a size as ``512 bytes``, ``1.5 GiB`` or ``16 GiB``."""
    return human_size(size_bytes).replace(".0 ", " ")


def rows(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a list of names and texts, a line each; a pair without a text is left out. The texts are escaped here."""
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in pairs if text)
    return f'<dl class="lines">{shown}</dl>' if shown else ""


def facts(items: Iterable[Fact]) -> str:
    """Return amounts side by side. The texts are escaped here."""
    shown = "".join(
        f"<div><dt>{escape(one.name)}</dt><dd>{escape(one.text)}{bar(one.shares)}"
        + (f"<small>{escape(one.remark)}</small>" if one.remark else "")
        + "</dd></div>"
        for one in items
        if one.text
    )
    return f'<dl class="facts">{shown}</dl>' if shown else ""


def bar(shares: Sequence[tuple[str, float]]) -> str:
    """Return a bar of parts; the text beside it has the same information; empty if it has no part."""
    parts = "".join(
        f'<i class="{escape(name)}" style="width:{100 * share:.1f}%"></i>' for name, share in shares if share > 0
    )
    return f'<span class="bar" aria-hidden="true">{parts}</span>' if parts else ""
