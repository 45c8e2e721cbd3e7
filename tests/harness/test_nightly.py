"""The nightly run: its parts, what it runs again, and what becomes of a failure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import nightly
from tests.applications import processes, wait_for
from tests.documented import table
from tests.nightly import CUT, FAILED, PASSED, SKIPPED, Nights, Unit, UsageError, part_of, parts, show, units


def unit(name: str, script: str, minutes: float | None = 1) -> Unit:
    return Unit(f"make {name}", (f"make {name}",), minutes, ("sh", "-c", script))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A working tree with one commit."""
    root = tmp_path / "tree"
    root.mkdir()
    (root / ".gitignore").write_text("ran\n")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first"],
    ):
        subprocess.run(["git", *words], cwd=root, check=True)
    return root


@pytest.fixture
def nights(tree: Path, tmp_path: Path) -> Nights:
    return Nights(tree, tmp_path / "results")


def states(nights: Nights) -> dict[str, str]:
    return {name.removeprefix("make "): result.state for name, result in nights.results().items()}


def ran(tree: Path) -> list[str]:
    file = tree / "ran"
    return file.read_text().split() if file.exists() else []


def test_a_unit_that_failed_stops_no_other_and_the_run_is_not_good(nights: Nights, tree: Path) -> None:
    part = [unit("a", "echo a >>ran; exit 3"), unit("b", "echo b >>ran; echo printed")]
    nights.run_part(part)
    assert states(nights) == {"a": FAILED, "b": PASSED}
    assert ran(tree) == ["a", "b"]
    assert nights.results()["make a"].why == "exit code 3"
    assert Path(nights.results()["make b"].log).read_text() == "printed\n"
    assert not show(nights, [part])


def test_passed_units_of_a_commit_are_skipped_and_failed_ones_repeated(nights: Nights, tree: Path) -> None:
    part = [unit("a", "echo a >>ran"), unit("b", "echo b >>ran; test $(grep -c b ran) = 2")]
    nights.run_part(part)
    nights.run_part(part)
    assert ran(tree) == ["a", "b", "b"]
    assert states(nights) == {"a": PASSED, "b": PASSED}
    assert show(nights, [part])


def test_at_another_commit_and_with_changes_all_units_run_again(nights: Nights, tree: Path) -> None:
    part = [unit("a", "echo a >>ran")]
    nights.run_part(part)
    (tree / "file").touch()
    assert not show(nights, [part])
    nights.run_part(part)
    nights.run_part(part)
    assert nights.results()["make a"].commit.endswith("+changes")
    subprocess.run(["git", "add", "."], cwd=tree, check=True)
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "second"]
    subprocess.run(commit, cwd=tree, check=True)
    nights.run_part(part)
    nights.run_part(part)
    assert ran(tree) == ["a"] * 4


def test_a_unit_that_no_time_is_left_for_is_left_to_the_next_call(tree: Path, tmp_path: Path) -> None:
    short = Nights(tree, tmp_path / "results", limit_min=0)
    part = [unit("a", "sleep 600"), unit("b", "echo b >>ran"), unit("c", "echo c >>ran", None)]
    short.run_part(part)
    assert states(short) == {"a": FAILED}
    assert short.results()["make a"].why == "took over 0 minutes"
    assert ran(tree) == []
    assert not show(short, [part])


def test_a_unit_that_the_end_of_its_part_cuts_off_has_neither_passed_nor_failed(nights: Nights) -> None:
    cut = unit("a", "sleep 600")
    nights.run_unit(cut, 0.0, is_first=False)
    assert states(nights) == {"a": CUT}
    assert not show(nights, [[cut]])
    assert not nights.has_passed(cut)


def test_processes_of_a_unit_that_is_cut_off_are_killed(tree: Path, tmp_path: Path) -> None:
    short = Nights(tree, tmp_path / "results", limit_min=0)
    short.run_part([unit("a", "sleep 600 & wait")])
    wait_for("the ends of its processes", lambda: not processes(tree))


@pytest.mark.parametrize(("required", "state"), [(False, SKIPPED), (True, FAILED)])
def test_a_unit_that_cannot_run_here_is_skipped_and_fails_where_the_run_must_be_complete(
    required: bool, state: str, nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nightly, "missing", lambda unit: "it needs a registry" if unit.name == "make a" else "")
    monkeypatch.setattr(nightly, "required", lambda: required)
    part = [unit("a", "false"), unit("b", "true")]
    nights.run_part(part)
    assert states(nights) == {"a": state, "b": PASSED}
    assert nights.results()["make a"].why == "it needs a registry"
    assert show(nights, [part]) is not required


def test_without_docker_images_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nightly.missing(unit("images NAME=torch", "true")) == "it needs Docker and a registry"
    assert nightly.missing(unit("dist", "true")) == ""


def test_a_unit_inherits_no_variables_of_the_make_call(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAKEFLAGS", "PART=2"), ("PART", "2"), ("ARGS", "-x")):
        monkeypatch.setenv(name, value)
    nights.run_part([unit("a", 'test -z "$MAKEFLAGS$PART$ARGS"')])
    assert states(nights) == {"a": PASSED}


@pytest.mark.parametrize(
    ("user", "name", "value"),
    [(0, "test-faults", "nightly"), (0, "test-versions VERSIONS=2.10.2", ""), (1000, "test-faults", "")],
)
def test_a_skipped_test_has_failed_where_root_can_install_all_that_the_unit_tests(
    user: int, name: str, value: str, nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DLAPP_REQUIRE", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: user)
    nights.run_part([unit(name, f'test "$DLAPP_REQUIRE" = "{value}"')])
    assert states(nights) == {name: PASSED}


def test_parts_are_at_most_so_long_and_have_all_units_in_their_order() -> None:
    minutes = [50, 30, 1, 79, None, None, 45, 90, 1]
    made = [unit(str(number), "true", one) for number, one in enumerate(minutes)]
    divided = parts(made, 80)
    assert [item for part in divided for item in part] == made
    assert [[item.minutes for item in part] for part in divided] == [[50, 30], [1, 79], [None, None], [45], [90], [1]]


def test_the_table_makes_parts_of_at_most_eighty_minutes() -> None:
    made = units(table.read(), list(table.sections("nightly")))
    assert {row for item in made for row in item.rows} == {row.what for row in table.read() if row.tier == "nightly"}
    for part in parts(made):
        assert sum(item.minutes or 0 for item in part) <= nightly.PART_MIN
    (hadoop,) = (item for item in made if "make demo-yarn" in item.rows)
    assert hadoop.name == "docs/yarn.md A test cluster on one machine"
    assert {"make yarn-up", "make yarn-down"} < set(hadoop.rows)


@pytest.mark.parametrize(("text", "index"), [("1", 0), ("9", 8), ("2/9", 1)])
def test_a_part_is_named_by_its_number(text: str, index: int) -> None:
    assert part_of(text, 9) == index


@pytest.mark.parametrize("text", ["0", "10", "1/8", "all", "-1", "1/", "1/9/9", "9" * 9])
def test_a_part_that_there_is_not_is_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="there are the parts 1 to 9, as in PART=1 or PART=1/9"):
        part_of(text, 9)


def test_a_wrong_part_is_one_line_and_exit_code_2(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    assert nightly.main(["999"], nights) == 2
    assert capsys.readouterr().err.startswith("Error: PART=999: there are the parts 1 to ")


def test_the_list_has_every_unit_and_runs_none(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    assert nightly.main(["list"], nights) == 0
    out = capsys.readouterr().out
    assert [
        row.what
        for row in table.read()
        if row.tier == "nightly" and row.what.startswith("make bench ") and row.what not in out
    ] == []
    assert nights.results() == {}
