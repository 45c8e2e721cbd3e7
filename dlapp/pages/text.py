"""Amounts and times as text in a page."""

from __future__ import annotations

import time
from html import escape


def local_time(timestamp_ms: int | None) -> str:
    """Return a time as ``2026-01-31 12:00:00 UTC``, in the zone of this machine; empty if it is not known.

    Args:
        timestamp_ms: since 1970 [ms]; None or 0: not known.
    """
    if not timestamp_ms:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(timestamp_ms / 1000))


def duration(seconds: float) -> str:
    """Return a duration as ``12.5 s``, ``3 min 20 s``, ``5 h 07 min`` or ``3 d 04 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def rows(pairs: list[tuple[str, str]]) -> str:
    """Return a list of names and texts; a pair without a text is left out. The texts are escaped here."""
    shown = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs if text)
    return f"<dl>{shown}</dl>" if shown else ""
