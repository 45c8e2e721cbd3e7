"""`make bench-against`: a bench of two trees by turns, and what is said of its rows."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from bench._against import HISTORY, commit_of, compare, is_slower, main, table

MAKEFILE = """.PHONY: bench
bench:
\t@mkdir -p bench/results
\t@cp figures.json bench/results/$(NAME).json
\t@echo $(NAME) >> runs
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit, whose bench gives the figures of a file."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "Makefile").write_text(MAKEFILE)
    (here / ".gitignore").write_text("/bench/\n/runs\n/.cache/\n")
    git(here, "init", "--quiet")
    write(here, {"rate": (4.0, "higher"), "time": (2.0, "lower"), "gone": (1.0, "lower")})
    return here


def git(here: Path, *words: str) -> str:
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    return subprocess.run(["git", *who, *words], cwd=here, check=True, capture_output=True, text=True).stdout.strip()


def write(here: Path, figures: dict[str, tuple[float, str]]) -> None:
    rows = [{"name": name, "ratio": ratio, "better": better} for name, (ratio, better) in figures.items()]
    (here / "figures.json").write_text(json.dumps(rows))
    git(here, "add", "-A")
    git(here, "commit", "--quiet", "-m", "figures")


def test_each_tree_runs_its_own_bench_by_turns_and_rows_that_got_worse_are_named(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = git(tree, "rev-parse", "HEAD")
    write(tree, {"rate": (3.0, "higher"), "time": (2.0, "lower"), "new": (1.0, "lower")})
    assert main([old[:8], "cli"], tree, rounds=3) == 0
    output = capsys.readouterr().out
    assert "rate  higher  0.750    0.750  0.750  SLOWER" in output
    assert "time  lower   1.000    1.000  1.000\n" in output
    assert "not in all runs: gone, new" in output
    assert (tree / "runs").read_text() == "cli\n" * 3
    assert (tree / ".cache" / "against" / old[:12] / "runs").read_text() == "cli\n" * 3
    (rate, time) = json.loads((tree / "bench" / "results" / "against-cli.json").read_text())
    assert (rate["name"], rate["ratio"], rate["goal"], rate["better"]) == ("rate", 0.75, 1.0, "higher")
    assert rate["conditions"]["old_commit"] == old
    assert time["conditions"]["rounds"] == [1.0, 1.0, 1.0]


def test_uncommitted_changes_are_measured_and_reported(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "figures.json").write_text(json.dumps([{"name": "rate", "ratio": 8.0, "better": "higher"}]))
    assert main(["HEAD", "cli"], tree, rounds=1) == 0
    output = capsys.readouterr().out
    assert "-dirty to " in output
    assert "rate  higher  2.000" in output


def test_a_failing_bench_ends_the_comparison_with_its_output(tree: Path) -> None:
    (tree / "figures.json").unlink()
    with pytest.raises(SystemExit, match=r"(?s)make bench NAME=cli in .*figures\.json"):
        main(["HEAD", "cli"], tree, rounds=1)


@pytest.mark.parametrize("argv", [["HEAD"], ["0123abcd", "cli"]])
def test_without_a_name_or_with_an_unknown_commit_no_bench_runs(tree: Path, argv: list[str]) -> None:
    assert main(argv, tree) == 2
    assert not (tree / "runs").exists()


def test_a_row_is_slower_only_if_each_round_is() -> None:
    new = [{"a": (2.2, "lower"), "b": (1.1, "lower")}, {"a": (2.1, "lower"), "b": (0.9, "lower")}]
    old = [{"a": (2.0, "lower"), "b": (1.0, "lower")}] * 2
    rows = compare(new, old, {})
    assert [is_slower(row) for row in rows] == [True, False]
    assert "b     lower   1.000" in table(rows)


ROOT = HISTORY.parents[1]


def test_the_history_has_a_commit_and_figures_for_each_stage() -> None:
    stages = json.loads(HISTORY.read_text())
    benches = {path.stem for path in HISTORY.parent.glob("*.py")}
    for stage in stages:
        assert re.fullmatch("[0-9a-f]{40}", stage["commit"])
        assert stage["rows"].keys() <= benches
        assert all(isinstance(ratio, float) for rows in stage["rows"].values() for ratio in rows.values())
    assert commit_of("") == commit_of(stages[-1]["stage"]) == stages[-1]["commit"]
    assert commit_of("HEAD~1") == "HEAD~1"


def test_each_table_of_figures_names_its_commit() -> None:
    results = (ROOT / "docs" / "figures.md").read_text().partition("\n## Results\n")[2]
    sections = re.findall(r"^### (\w+)\n\n(.*)$", results, re.MULTILINE)
    assert len(sections) > 10
    assert [name for name, first in sections if not re.match(r"Commit `[0-9a-f]{8}`\.", first)] == []
    named = set(re.findall(r"`([0-9a-f]{8})`", results)) | {load["commit"] for load in json.loads(HISTORY.read_text())}
    shallow = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    if shallow.stdout.strip() == "false":  # else it is no clone, or one without its history
        assert {git(ROOT, "cat-file", "-t", commit) for commit in named} == {"commit"}
