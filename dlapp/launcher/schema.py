"""JSON schema of a properties file, for editors: sections are objects, and values are text, as in the file."""

from __future__ import annotations

import re
from typing import Any

from dlapp.application.keys import NAME, NAMED, OF_ROLES, REQUIRED_SECTIONS, SECTIONS, PropertyKey

_ASIDE = re.compile(r" \(\[[^\]]+\]\([^)]*\)\)")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_BOOLEANS = ("true", "false", "yes", "no", "on", "off", "1", "0")
_NAMES = {
    "role": "[a-z][a-z0-9_-]{0,30}",
    "service": "[a-z][a-z0-9_-]{0,30}",
    "from_hdfs": "[A-Za-z0-9][A-Za-z0-9_-]{0,30}",
    "to_hdfs": "[A-Za-z0-9][A-Za-z0-9_-]{0,30}",
}


def schema() -> dict[str, Any]:
    """Return the schema. Source of its form: json-schema.org, draft 2020-12."""
    sections = {section: _section(section) for section in SECTIONS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dlapp properties file",
        "type": "object",
        "properties": {one: {"$ref": f"#/$defs/{one}"} for one in SECTIONS if one not in OF_ROLES},
        "patternProperties": {f"^{one} {_NAMES[one]}$": {"$ref": f"#/$defs/{one}"} for one in NAMED},
        "required": list(REQUIRED_SECTIONS),
        "additionalProperties": False,
        "$defs": sections,
    }


def _section(section: str) -> dict[str, Any]:
    keys = {name: key for name, key in SECTIONS[section].items() if key.is_built}
    patterns = {name: key for name, key in keys.items() if name.endswith(f".{NAME}")}
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: _key(key, section) for name, key in keys.items() if name not in patterns},
        "required": [name for name, key in keys.items() if key.required],
        "additionalProperties": False,
    }
    if patterns:
        found["patternProperties"] = {
            f"^{re.escape(name.removesuffix(NAME))}.": _key(key, section) for name, key in patterns.items()
        }
    return found


def _key(key: PropertyKey, section: str) -> dict[str, Any]:
    form, default = key.form, key.default_in(section)
    unit = f" [{form.unit}]" if form.unit else ""
    found: dict[str, Any] = {"type": "string", "description": plain(key.meaning) + unit}
    allowed = _BOOLEANS if form.what == "boolean" else form.allowed
    if allowed:
        found["enum"] = list(allowed)
    elif form.what == "count":
        found["pattern"] = "^[0-9]+$"
    if match := re.fullmatch(r"`([^`]+)`", default):
        found["default"] = match[1]
    elif default and default != "required":
        found["description"] += f" (default: {plain(default)})"
    return found


def plain(text: str) -> str:
    """Return a line of documentation without Markdown."""
    return _LINK.sub(r"\1", _ASIDE.sub("", text)).replace("`", "").replace("\\|", "|")
