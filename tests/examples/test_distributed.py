"""The files of the example of distributed training; tests/end_to_end/frameworks/test_frameworks.py runs its
programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.application.description import read_application
from dlapp.cluster.engine import EngineInfo
from dlapp.config import load_config
from dlapp.values.spec import AppSpec, Framework
from tests.services.missing import missing

FILES = Path(__file__).parents[2] / "examples" / "distributed"


def spec(name: str) -> AppSpec:
    config = load_config(environ={"HOME": missing()}, system_file=missing())
    return read_application(str(FILES / name), config, EngineInfo(name="local", version="1", has_gpus=False)).spec


@pytest.mark.parametrize("file", sorted(path.name for path in FILES.glob("*.properties")))
def test_each_file_makes_an_application_and_the_readme_names_it(file: str) -> None:
    made = spec(file)
    assert made.framework is not Framework.NONE
    assert f"| `{file}` |" in (FILES / "README.md").read_text(encoding="utf-8")
    assert (Path(made.workspace) / made.script).stat().st_mode & 0o111


def test_parameter_servers_and_workers_are_ended_when_the_chief_is_done() -> None:
    made = spec("parameter_server.properties")
    assert [(role.name, role.instances, made.decides(role)) for role in made.roles] == [
        ("chief", 1, True),
        ("worker", 2, False),
        ("ps", 1, False),
    ]
