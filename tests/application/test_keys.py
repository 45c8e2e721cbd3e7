"""The table of keys: its fields, defaults, documentation and the schema that is made of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dlapp.application.description import read_application
from dlapp.application.keys import KEYS, NAME, OF_ROLES, SECTIONS, PropertyKey
from dlapp.application.properties import parse_properties
from dlapp.cluster.engine import EngineInfo
from dlapp.config import Config
from dlapp.launcher.schema import schema
from dlapp.sweep.spec import SweepSpec
from dlapp.value import Value, fields
from dlapp.values.spec import AppSpec, CheckpointSpec, InputSpec, OutputSpec, RoleSpec
from tests.project.property_tables import PAGE, keys_with_rows, page_with_tables
from tests.project.test_docs import FILES, SECTION_WITH, documented_defaults

CLASSES: dict[str, type[Value]] = {
    "application": AppSpec,
    "resources": RoleSpec,
    "role": RoleSpec,
    "service": RoleSpec,
    "from_hdfs": InputSpec,
    "to_hdfs": OutputSpec,
    "checkpoint": CheckpointSpec,
    "sweep": SweepSpec,
}
INSIDE = {"resources": "Resources", "placement": "Placement", "feed": "FeedSpec"}


@pytest.mark.parametrize("key", [key for key in KEYS if key.field], ids=lambda key: "-".join(key.names))
def test_a_key_sets_a_field_that_the_values_of_its_sections_have(key: PropertyKey) -> None:
    inner, _, field = key.field.rpartition(".")
    for section in key.names:
        cls = CLASSES[section]
        if inner:
            assert inner in fields(cls)
            import dlapp.values.spec

            cls = getattr(dlapp.values.spec, INSIDE[inner])
        assert field in fields(cls), f"[{section}] {key.names[section]}"


def test_no_two_keys_of_a_section_set_one_field() -> None:
    for section, keys in SECTIONS.items():
        set_by = [key.field for key in keys.values() if key.field]
        assert len(set_by) == len(set(set_by)), section


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (section, name)
        for section, keys in SECTIONS.items()
        for name, key in keys.items()
        # Others are described in words, or are keys of the configuration.
        if re.fullmatch(r"`(?!defaults\.|notify\.|runtime\.)[^`<]+`", key.default_in(section))
    ],
)
def test_documented_defaults_match_a_file_without_the_key(section: str, name: str, place: Path, config: Config) -> None:
    default = SECTIONS[section][name].default_in(section).strip("`")
    without = SECTION_WITH[section] + ("mode=feed\n" if name.startswith("feed.") else "")
    engine = EngineInfo(name="local", version="1", has_gpus=True)
    found = []
    for text in (without, f"{without}{name}={default}\n"):
        (place / "app.properties").write_text(text.replace("=code", "=w").replace("start.sh", "s.sh"))
        found.append(read_application(str(place / "app.properties"), config, engine).spec)
    assert found[0] == found[1]


def test_the_defaults_in_the_annotated_files_are_those_of_the_table() -> None:
    checked = 0
    for section, name, default in documented_defaults():
        text = SECTIONS[section][name].default_in(section)
        if match := re.fullmatch(r"`([^`]+)`", text):
            assert match[1] == default, f"[{section}] {name}"
            checked += 1
    assert checked > 15


def test_the_page_on_properties_has_the_tables_of_keys() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- keys of \[(\w+)\]", text)) == set(SECTIONS)
    assert page_with_tables(text) == text, "python -m tests.project.property_tables"


def test_each_key_has_a_row_in_one_table_of_the_page() -> None:
    rows = keys_with_rows(PAGE.read_text(encoding="utf-8"))
    assert rows == {(section, name): 1 for section, keys in SECTIONS.items() for name in keys}


# ---- the schema ----


def faults(value: Any, rules: dict[str, Any], defs: dict[str, Any], where: str = "") -> list[str]:
    """Return what of a JSON value the schema does not allow; only what our schema uses of the standard."""
    rules = defs[rules["$ref"].rpartition("/")[2]] if "$ref" in rules else rules
    if rules["type"] == "string":
        wrong = not isinstance(value, str) or value not in rules.get("enum", [value])
        return [where] if wrong or not re.search(rules.get("pattern", ""), value) else []
    found = [f"{where}/{name}" for name in rules["required"] if name not in value]
    for name, one in value.items():
        patterns = (each for pattern, each in rules.get("patternProperties", {}).items() if re.search(pattern, name))
        inner = rules["properties"].get(name) or next(patterns, None)
        found += [f"{where}/{name}"] if inner is None else faults(one, inner, defs, f"{where}/{name}")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_schema_allows_the_annotated_files_and_no_unknown_key_or_word(file: Path) -> None:
    rules = json.loads(json.dumps(schema()))
    properties = parse_properties(file.read_bytes(), str(file))
    data: dict[str, dict[str, str]] = {
        section: {key: setting.value for key, setting in settings.items()}
        for section, settings in properties.sections.items()
    }
    assert faults(data, rules, rules["$defs"]) == []
    assert faults({**data, "aplication": {}}, rules, rules["$defs"]) == ["/aplication"]
    data["application"] |= {"gang": "some", "priority": "high", "appnam": "a"}
    wrong = [f"/application/{value}" for value in ("appnam", "gang", "priority")]
    assert sorted(faults(data, rules, rules["$defs"])) == wrong
    del data["application"]["appname"]
    assert "/application/appname" in faults(data, rules, rules["$defs"])


def test_the_schema_has_each_key_with_its_documentation() -> None:
    defs = schema()["$defs"]
    assert set(defs) == set(SECTIONS)
    for section, keys in SECTIONS.items():
        names = {*defs[section]["properties"], *defs[section].get("patternProperties", {})}
        built = {name for name, key in keys.items() if key.is_built}
        assert names == {f"^{re.escape(n.removesuffix(NAME))}." if n.endswith(f".{NAME}") else n for n in built}
        for found in (*defs[section]["properties"].values(), *defs[section].get("patternProperties", {}).values()):
            assert found["description"]
            assert "](" not in found["description"]
    assert all(f"^{section} " in " ".join(schema()["patternProperties"]) for section in OF_ROLES)


def test_each_key_has_one_line_of_documentation() -> None:
    for key in KEYS:
        assert "\n" not in key.meaning
        assert bool(key.meaning) is key.is_built
