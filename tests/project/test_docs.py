"""The pages for users say what the code does: the annotated properties file, quoted messages, commands."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from dlapp.application.description import read_application
from dlapp.application.keys import SECTIONS, names_of
from dlapp.application.properties import Problems, Properties, read_properties
from dlapp.cluster.engine import EngineInfo
from dlapp.config import load_config
from dlapp.values.spec import AppSpec
from tests.documented.pages import blocks
from tests.project.source import ROOT, tree_of
from tests.services.missing import missing

pytestmark = pytest.mark.xdist_group("project")  # one worker reads the whole code, and not each of them

ANNOTATED = ROOT / "docs" / "annotated.properties"
ROLES = ROOT / "docs" / "roles.properties"
CHECKPOINT = ROOT / "docs" / "checkpoint.properties"
SWEEP = ROOT / "docs" / "sweep.properties"
SERVICE = ROOT / "docs" / "service.properties"
FILES = (ANNOTATED, ROLES, CHECKPOINT, SWEEP, SERVICE)
"""Keys that cannot stand in the same file: a script and a command, containers and roles."""
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
TABLES = re.compile(r"^\| ?message \|.*\n\|[-|]*\n((?:\|.*\n)+)", re.MULTILINE)
MINIMAL = "[application]\nappname=a\nuser_dev_workspace_path=code\nuser_shell_script=start.sh\n"
SECTION_WITH = {
    "application": f"{MINIMAL}docker_image=i\n",
    "resources": f"{MINIMAL}[resources]\n",
    "from_hdfs": f"{MINIMAL}[from_hdfs]\nhdfs=a\ninput_path=a\n",
    "to_hdfs": f"{MINIMAL}[to_hdfs]\noutput_path=b\nhdfs=b\n",
    "role": f"{MINIMAL}[role a]\n",
    "service": f"{MINIMAL}[service a]\ncommand=x\n",
    "checkpoint": f"{MINIMAL}[checkpoint]\npath=m\nhdfs=c\n",
    "sweep": f"{MINIMAL}[sweep]\nrandom.a=uniform(0, 1)\ntrials=3\n",
}


def annotated(file: Path) -> Properties:
    faults = Problems(str(file))
    properties = read_properties(file.read_bytes(), str(file), faults)
    faults.refuse()
    return properties


def documented_defaults() -> list[tuple[str, str, str]]:
    """Section, key and value of each default that is a value: ``# Default: 30s`` above ``kill_grace=2m``."""
    found = []
    section = default = ""
    for line in "".join(file.read_text(encoding="utf-8") for file in FILES).splitlines():
        if line.startswith("["):
            section = line.strip("[]").partition(" ")[0]
        elif match := re.fullmatch(r"# Default: (\S+[^.\s])", line):
            default = match[1]
        elif default and "=" in line and not line.startswith("#"):
            found.append((section, line.partition("=")[0], default))
            default = ""
    return found


def spec(directory: Path, text: str) -> AppSpec:
    (directory / "app.properties").write_text(text, encoding="utf-8")
    config = load_config(environ={"HOME": missing()}, system_file=missing())
    engine = EngineInfo(name="local", version="1", has_gpus=True)
    return read_application(str(directory / "app.properties"), config, engine).spec


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with what the annotated file names."""
    (tmp_path / "code").mkdir()
    for name in ("start.sh", "evaluate.sh"):
        (tmp_path / "code" / name).write_text("#!/bin/sh\n")
    (tmp_path / "secrets.env").write_text("TOKEN=secret\n")
    (tmp_path / "secrets.env").chmod(0o600)
    return tmp_path


@pytest.mark.parametrize("kind", sorted(SECTIONS))
def test_the_annotated_files_have_every_key_that_the_code_knows(kind: str) -> None:
    sections = [item for file in FILES for item in annotated(file).sections.items()]
    keys = {key for section, settings in sections if section.partition(" ")[0] == kind for key in settings}
    if kind == "sweep":  # other ways to say where parameters come from
        keys |= set(re.findall(r"^#([a-z][a-z_.]*)=", SWEEP.read_text(encoding="utf-8"), re.MULTILINE))
    known = {name.removesuffix("NAME") for name in names_of(kind)}
    named = re.compile(r"^(env\.|cache\.|link\.|grid\.|random\.).*")
    assert {named.sub(r"\1", key) for key in keys} == known


def test_the_annotated_file_describes_an_application_that_can_be_made(place: Path) -> None:
    made = spec(place, ANNOTATED.read_text(encoding="utf-8"))
    assert [source.name for source in made.inputs] == ["", "test-set", "train"]
    assert [output.name for output in made.outputs] == ["", "tensorboard"]
    of_checkpoint = spec(place, CHECKPOINT.read_text(encoding="utf-8")).checkpoint
    assert of_checkpoint is not None
    assert (of_checkpoint.every_s, of_checkpoint.keep) == (300.0, 2)
    of_roles = spec(place, ROLES.read_text(encoding="utf-8"))
    assert [role.name for role in of_roles.roles] == ["trainer", "evaluation", "board"]
    of_service = spec(place, SERVICE.read_text(encoding="utf-8"))
    assert of_service.is_service
    assert [role.name for role in of_service.roles] == ["api", "cache"]
    of_sweep = spec(place, SWEEP.read_text(encoding="utf-8")).sweep
    assert of_sweep is not None
    assert (of_sweep.trials, of_sweep.concurrency_of(4), of_sweep.metric) == (200, 8, "accuracy")


def test_each_documented_default_matches_a_file_without_the_key(place: Path) -> None:
    defaults = documented_defaults()
    assert {(section, key) for section, key, _ in defaults} >= {("application", "kill_grace"), ("resources", "memory")}
    for section, key, default in defaults:
        without = SECTION_WITH[section] + ("mode=feed\n" if key.startswith("feed.") else "")
        assert spec(place, f"{without}{key}={default}\n") == spec(place, without), key


@cache
def messages() -> tuple[str, ...]:
    """Each text in the code that is not a docstring, with ``…`` for its values."""
    found = []
    for path in sorted((ROOT / "dlapp").rglob("*.py")):
        nodes = list(ast.walk(tree_of(path)))
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        parts |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if id(node) in parts:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.append(re.sub("…+", "…", text))
    return tuple(found)


def quoted_messages() -> list[str]:
    """Return what the tables of the page on troubleshooting quote below ``message``."""
    tables = TABLES.findall(TROUBLESHOOTING)
    return [quoted for table in tables for quoted in re.findall(r"^\| ?`([^`]+)` ?\|", table, re.MULTILINE)]


def test_every_row_of_the_page_on_troubleshooting_quotes_a_message() -> None:
    tables = TABLES.findall(TROUBLESHOOTING)
    assert len(quoted_messages()) == sum(table.count("\n") for table in tables) > 50


@pytest.mark.parametrize("quoted", quoted_messages())
def test_a_message_that_the_page_on_troubleshooting_quotes_is_in_the_code(quoted: str) -> None:
    assert any(quoted in message for message in messages())


def test_the_example_of_completion_names_every_command() -> None:
    (example,) = (block.text for block in blocks("docs/commands.md") if block.language == "bash")
    named = " ".join(re.findall(r'^names="(?:\$names )?([a-z ]*)"$', example, re.MULTILINE)).split()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    commands = sorted(name.removeprefix("dlapp-") for name in scripts if name != "dlapp")
    assert sorted(named) == commands


def test_each_module_that_the_page_on_architecture_names_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = [f"/{path.relative_to(ROOT)}" for kind in ("dlapp", "tests") for path in sorted((ROOT / kind).rglob("*"))]
    named = [f"/{name}".rstrip("/") for name in re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`", page)]
    assert len(named) > 100
    assert [name for name in named if not any(file.endswith(name) for file in files)] == []
