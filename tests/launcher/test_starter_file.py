"""The first properties file of a directory: it names its program, and runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.errors import UsageError
from dlapp.launcher.starter_file import write_starter_file
from tests.applications import run


@pytest.mark.parametrize(
    ("names", "program"),
    [
        (["train.py"], "train.py"),
        (["train.py", "main.py", "run.sh"], "run.sh"),
        (["other.py"], "other.py"),
        (["one.py", "two.py"], ""),
        (["README.md"], ""),
        ([], ""),
    ],
)
def test_the_program_is_the_likely_one(tmp_path: Path, names: list[str], program: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert write_starter_file(str(tmp_path / "app.properties")) == program


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    (tmp_path / "app.properties").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        write_starter_file(str(tmp_path / "app.properties"))
    assert (tmp_path / "app.properties").read_text() == "mine"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["plain", 'a\'b "c"', "#hash", "an=equal", "ä"])
def test_a_directory_of_any_name_can_be_run(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    place.mkdir()
    (place / "my train.py").write_text("print('trained')\n")
    file = place / "app.properties"
    done = run("dlapp-launcher", "--init", file)
    assert done.out == f"{file} runs my train.py\nnext : dlapp-launcher --wait {file}\n"
    assert run("dlapp-launcher", "--wait", file).code == 0
    assert run("dlapp-logs", "last").out == "[0] trained\n"


@pytest.mark.parametrize("option", [["--wait"], ["--print-spec"], ["--json"], ["--set", "resources.memory=1g"]])
def test_with_another_option_it_is_refused(tmp_path: Path, option: list[str]) -> None:
    assert run("dlapp-launcher", "--init", *option, tmp_path / "app.properties").code == 2
    assert not (tmp_path / "app.properties").exists()
