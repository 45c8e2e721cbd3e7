"""Write the tables of docs/properties.md: ``python -m tests.project.property_tables``, after a change of a key.

A table stands after a comment ``<!-- keys of [SECTION] -->``, or ``<!-- keys of [SECTION]: KEY KEY ... -->`` for
some of them in this order, and is made of the table of keys.
"""

from __future__ import annotations

import re
from collections import Counter

from dlapp.application.keys import OF_ROLES, SECTIONS, PropertyKey
from tests.project.source import ROOT

PAGE = ROOT / "docs" / "properties.md"
_TABLE = re.compile(r"(<!-- keys of \[(\w+)\](?:: ([\w. ]+))? -->\n)(?:\|.*\n)*")


def table(section: str, only: str = "") -> str:
    """Return the rows of a section: its own keys, and one line for each other section whose keys it shares.

    Args:
        section: the section.
        only: the keys, separated by blanks; empty: all.
    """
    rows, shared = [], dict[tuple[str, str], list[str]]()
    keys = SECTIONS[section]
    for name, key in [(name, keys[name]) for name in only.split() or keys]:
        if not key.is_built:
            continue
        first, default = next(iter(key.names)), key.default_in(section)
        if first == section or key.names[first] != name:
            rows.append(_row(f"`{name}`", _meaning(key, section), default))
        else:
            shared.setdefault((first, default), []).append(f"`{name}`")
    for (first, default), names in shared.items():
        rows.append(_row(", ".join(names), f"as in `{_title(first)}`", default))
    return "\n".join(["|key |meaning |default|", "|---|---|---|", *rows]) + "\n"


def _row(name: str, meaning: str, default: str) -> str:
    return f"|{name} |{meaning} |{default}|"


def _meaning(key: PropertyKey, section: str) -> str:
    first = next(iter(key.names))
    return key.meaning if first == section else f"as `{key.names[first]}` in `{_title(first)}`"


def _title(section: str) -> str:
    return f"[{section} NAME]" if section in OF_ROLES else f"[{section}]"


def page_with_tables(text: str) -> str:
    """Return the page with all its tables as the table of keys has them."""
    return _TABLE.sub(lambda found: found[1] + table(found[2], found[3] or ""), text)


def keys_with_rows(text: str) -> Counter[tuple[str, str]]:
    """Return how many tables of the page have each section's keys."""
    found = Counter[tuple[str, str]]()
    for _, section, names in _TABLE.findall(text):
        found.update((section, name) for name in names.split() or SECTIONS[section])
    return found


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
