"""A command of a page that fails, or prints something else than the page says, is refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.documented.runner import Refused, run_section
from tests.documented.scenarios import Scenario

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a mount namespace")


def run(directory: Path, text: str, scenario: Scenario | None = None, left_out: frozenset[str] = frozenset()) -> None:
    page, place = directory / "page.md", directory / "place"
    page.write_text(f"# Page\n\n## Section\n\n{text}", encoding="utf-8")
    place.mkdir()
    run_section((str(page), "Section"), scenario or Scenario(), left_out, place, {})


@pytest.mark.parametrize(
    ("text", "scenario", "message"),
    [
        ("    ls absent\n    echo after\n", Scenario(), "did not end with exit code 0"),
        ("    $ echo a\n    a\n    $ test -e absent\n", Scenario(), "did not end with exit code 0"),
        ("    $ echo a\n    b\n", Scenario(compare=True), "should print\nb\n"),
        ("    $ echo a; echo b\n    a\n", Scenario(compare=True), "should print\na\n"),
        ("    echo a\n", Scenario(codes={"echo a": (3,)}), "exit code 0\na\n"),
        ("    echo a\n", Scenario(prepare="ls absent"), r"\$ preparation\ndid not end"),
        ("    exec true\n", Scenario(), "did not end"),
        (
            "    sh -c 'echo; exec sleep 1000'\n",
            Scenario(typed={"sh -c 'echo; exec sleep 1000'": ("\n", r"\x03")}),
            "exit code 130",
        ),
        ("```zsh\nfalse\n```\n", Scenario(), "exit code 1"),
    ],
)
def test_a_command_that_differs_from_its_page_is_refused(
    text: str, scenario: Scenario, message: str, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=message):
        run(tmp_path, text, scenario)


def test_the_blocks_of_a_section_share_directory_variables_and_files(tmp_path: Path) -> None:
    run(
        tmp_path,
        "    mkdir here && cd here\n    export name=value\n\n"
        'The file `a/b.sh`:\n\n    #!/bin/sh\n    echo "it is $name"\n\n'
        "Then:\n\n    $ a/b.sh\n    it is …\n    $ false\n    $ echo $?\n    1\n",
        Scenario(compare=True),
    )


def test_a_block_that_carries_a_reason_is_not_run(tmp_path: Path) -> None:
    run(tmp_path, "    ls absent\n\nAnd:\n\n    ls\n", left_out=frozenset(["ls absent"]))


def test_a_placeholder_is_replaced_by_the_scenarios_value(tmp_path: Path) -> None:
    replace = {"/path/to/the/clone": "{tree}"}
    run(tmp_path, "    grep -q dlapp /path/to/the/clone/pyproject.toml\n", Scenario(replace=replace))


def test_changes_and_processes_of_a_page_end_with_its_namespace(tmp_path: Path) -> None:
    name = f"documented-{os.getpid()}"
    run(
        tmp_path,
        f"    groupadd {name} && grep {name} /etc/group\n    install -d /srv/{name} /var/lib/{name} /opt/{name}\n"
        f"    echo d >/run/lock/{name} && ls /run/lock/{name}\n    sleep 86399.{os.getpid()} >/dev/null &\n",
    )
    assert name not in Path("/etc/group").read_text()
    assert [path for path in ("/srv", "/var/lib", "/opt", "/run/lock") if os.path.lexists(f"{path}/{name}")] == []
    left = subprocess.run(["pgrep", "-f", f"sleep 86399.{os.getpid()}"], capture_output=True)
    assert left.returncode == 1


def test_without_namespaces_no_command_of_a_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mount").write_text("#!/bin/sh\necho no mount here >&2\nexit 32\n")
    (programs / "mount").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with pytest.raises(Refused, match="no mount here"):
        run(tmp_path, f"    echo a >{tmp_path}/ran\n")
    assert not (tmp_path / "ran").exists()


def test_a_page_has_its_own_home_directory_and_no_settings_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_CLUSTER", "yarn")
    run(tmp_path, '    test -z "$DLAPP_CLUSTER"\n    test "$(ls -A ~)" = app\n')
