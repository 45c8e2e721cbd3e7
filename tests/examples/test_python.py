"""The examples of docs/python.md run as they stand there, and print what stands there."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dlapp import AppSpec, Client, InputSpec, OutputSpec, Resources, RoleSpec
from dlapp.errors import FileRefused, UsageError

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def examples() -> list[tuple[str, str]]:
    """Each example, with what it prints."""
    found = re.findall(r"```python\n(.*?)```\n\nprints\n\n((?: {4}[^\n]*\n)+)", PAGE.read_text(), re.DOTALL)
    return [(code, textwrap.dedent(printed)) for code, printed in found]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that the page speaks of, as the working directory."""
    script = tmp_path / "code" / "start.sh"
    script.parent.mkdir()
    text = PAGE.read_text().partition("`code/start.sh` with\n\n")[2].partition("\n\n")[0]
    script.write_text(textwrap.dedent(text) + "\n")
    script.chmod(0o755)
    (tmp_path / "dl_app.properties").write_text(
        "[application]\nappname=a\nuser_dev_workspace_path=code\nuser_shell_script=start.sh\nuser_shell_args=x\n"
        "[resources]\nmemory=64\ngcores=0\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_example_prints_what_the_page_says(place: Path) -> None:
    assert len(examples()) == PAGE.read_text().count("```python") == 3
    for code, printed in examples():
        done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (printed, "")


def spec(**fields: object) -> AppSpec:
    given = {"username": "u", "appname": "a", "workspace": "code", "script": "start.sh", **fields}
    return AppSpec(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"workspace": "other"},
            "AppSpec: application.user_dev_workspace_path: {place}/other: there is no such ",
        ),
        (
            {"script": "other.sh"},
            "AppSpec: application.user_shell_script: {place}/code/other.sh: there is no such ",
        ),
        ({"env": ("A", "B")}, "AppSpec: application.env: has no value for A, B"),
        ({"kill_grace_s": 1e6}, "AppSpec: application.kill_grace: is 1e+06 s, the maximum allowed here is 3600 s"),
        (
            {"inputs": (InputSpec(sources=("none/*",), input_path="in"),)},
            "AppSpec: from_hdfs.hdfs: {place}/none/* matches nothing",
        ),
        (
            {"outputs": (OutputSpec(output_path="output", target="."),)},
            "AppSpec: to_hdfs.hdfs: {place} would overwrite the workspace",
        ),
        ({"roles": (RoleSpec(), RoleSpec(name="ps"))}, "AppSpec: roles: several roles, and roles of their own kind: "),
        ({"roles": (RoleSpec(script="x.sh"),)}, "AppSpec: roles: several roles, and roles of their own kind: "),
    ],
)
def test_a_spec_that_cannot_run_is_refused_with_its_field(place: Path, fields: dict[str, object], said: str) -> None:
    with Client() as client, pytest.raises(FileRefused) as refused:
        client.submit(spec(**fields))
    assert refused.value.faults[0].startswith(said.format(place=place)), refused.value.faults


def test_a_variable_that_no_program_can_have_is_refused_with_its_name(place: Path) -> None:
    for name, value in (("NV_GPU", "0"), ("A", "a\0b")):
        with Client() as client, pytest.raises(FileRefused, match=f"AppSpec: application.env.{name}: "):
            client.submit(spec(), env={name: value})


def test_variables_are_for_a_spec_alone(place: Path) -> None:
    with Client() as client, pytest.raises(UsageError, match="env is for a spec"):
        client.submit("dl_app.properties", env={"A": "1"})


def test_a_spec_asks_for_exactly_what_it_says(place: Path) -> None:
    roles = (RoleSpec(instances=2, resources=Resources(memory_mib=64, vcores=1), retries=3),)
    with Client() as client:
        application = client.submit(spec(roles=roles, tags=("x",), project="p"))
        client.wait(application)
        submitted = client.engine.submission(application).spec
    assert (submitted.roles, submitted.tags, submitted.project) == (roles, ("x",), "p")
    assert submitted.workspace == str(place / "code")


def test_importing_the_package_loads_nothing_and_its_names_are_the_classes() -> None:
    code = (
        "import sys; before = set(sys.modules); import dlapp; "
        "print(*sorted(set(sys.modules) - before)); from dlapp import *; print(Client.__module__, AppSpec.__module__)"
    )
    shown = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == ["__future__ dlapp", "dlapp.client dlapp.spec"]


def test_a_name_that_the_package_lacks_is_an_attribute_error() -> None:
    with pytest.raises(ImportError, match="Klient"):
        exec("from dlapp import Klient")
