"""The frame around the code says what is true of it."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bench import Row
from bench import __main__ as bench
from bench.__main__ import kept, table
from dlapp.application.keys import SECTIONS
from dlapp.config import KEYS
from dlapp.runtime.payload import PayloadDevice
from dlapp.task.environment import default_variables, payload_environment
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Assignment
from dlapp.values.program.submitter import CERTIFICATES, ENVIRONMENT, PROXIES
from dlapp.values.spec import InputSpec, OutputSpec, Resources
from tests.project.docs_site import anchor
from tests.services import install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")])


@pytest.mark.parametrize("command", sorted(PROJECT["scripts"]))
def test_the_readme_names_every_command(command: str) -> None:
    assert f"|`{command}" in (ROOT / "README.md").read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """The names by which links reach the headings of a page: GitHub's."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {anchor(heading) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_the_pages_is_valid(page: Path) -> None:
    missing = []
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        file, _, name = link.partition("#")
        to = page.parent / file if file else page
        if "://" not in link and (not to.exists() or (name and name not in anchors(to))):
            missing.append(link)
    assert missing == []


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
    assert sorted(page for page in pages if f"({page}" not in index) == []


def test_the_page_on_configuration_has_the_table_of_keys() -> None:
    lines = ["|key |value |default |meaning|", "|---|---|---|---|"]
    for name, key in KEYS.items():
        none = "all of the machine" if name.startswith("local.") else "none"
        default = f"`{key.default_text}`" if key.default_text else none
        lines.append(f"|`{name}` |{key.kind} |{default} |{key.meaning}|")
    assert "\n".join(lines) + "\n" in (ROOT / "docs/configuration.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_the_page_on_properties_names_every_key(section: str) -> None:
    page = (ROOT / "docs/properties.md").read_text(encoding="utf-8")
    assert [key for key in SECTIONS[section] if f"`{key}`" not in page] == []


def test_the_page_on_payloads_names_every_variable_that_one_gets() -> None:
    page = (ROOT / "docs/payload.md").read_text(encoding="utf-8")
    assignment = Assignment(
        application_id=ApplicationId(1, 1),
        attempt=1,
        container_id=ContainerId(ApplicationId(1, 1), 1, 2),
        index=0,
        total=1,
        role="worker",
        role_index=0,
        role_size=1,
        resources=Resources(),
        script="a",
        args=(),
        docker_image=None,
        username="u",
        appname="a",
        workspace_archive="file:///a",
        workspace_digest="sha256-0",
        inputs=(InputSpec(name="name", sources=("file:///a",), input_path="in"),),
        outputs=(OutputSpec(name="name", output_path="out", target="file:///b"),),
    )
    places: dict[str, Any] = {
        "workspace": "/w",
        "home": "/h",
        "tmp": "/t",
        "run": "/r",
        "caches": {"name": "/c"},
    }
    submitter = dict.fromkeys((*ENVIRONMENT, *PROXIES, *CERTIFICATES), "x")
    found = payload_environment(assignment, **places, submitter=submitter, user={}, gpus=[PayloadDevice("GPU-1", 0)])
    found |= default_variables(assignment, user={}, cache_path="/f")
    assert [name for name in found if f"`{name}`" not in page and name != "PWD"] == []


def test_a_table_of_figures_marks_missed_goals() -> None:
    rows = [
        Row(name="fast", ratio=1.5, goal=7, better="lower", conditions={"ms": 16.25}),
        Row(name="slow", ratio=1.2, goal=1.5, better="higher"),
    ]
    heading, first, second = (line.split() for line in table(rows).splitlines())
    assert heading == ["name", "ratio", "goal", "conditions"]
    assert first == ["fast", "1.50", "<=", "7", "ok", "ms=16.25"]
    assert second == ["slow", "1.20", ">=", "1.5", "MISSED"]


def test_stored_figures_are_a_list_with_goal_and_direction() -> None:
    rows = [
        Row(name="fast", ratio=1.5, goal=7, better="lower", conditions={"ms": 16.25}),
        Row(name="slow", ratio=1.2, goal=1.5, better="higher"),
    ]
    first, second = kept(rows, 0.0)
    assert first["conditions"].pop("ms") == 16.25
    conditions = first["conditions"]
    assert conditions["began"] == "1970-01-01T00:00:00Z"
    assert conditions["machine"]["cores"] == os.cpu_count()
    assert first == {"name": "fast", "ratio": 1.5, "goal": 7, "better": "lower", "conditions": conditions}
    assert second == {"name": "slow", "ratio": 1.2, "goal": 1.5, "better": "higher", "conditions": second["conditions"]}


def test_a_bench_with_a_missing_program_names_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(bench, "missing", lambda: list(install.NEEDS))
    monkeypatch.setattr(bench, "install", asked.append)
    assert bench.main(["ledger"]) == 1
    assert asked == [["default-jre-headless", "zookeeper"]]
    assert capsys.readouterr().err == (
        "Error: ledger cannot be measured here: no java, /usr/share/java/zookeeper.jar; "
        "as root: apt-get install default-jre-headless zookeeper\n"
    )
