"""The servers of the tests: which tests are marked for them, which share a worker, and when a server ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.services.needs import left_out
from tests.tiers import in_part

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import pytest
from tests.conftest import *
from tests.conftest import (
    pytest_collection_finish, pytest_collection_modifyitems, pytest_fixture_setup, pytest_runtest_setup,
    pytest_runtest_teardown,
)
from tests.services import needs

def note(line):
    with open({log!r}, "a") as log:
        log.write(line + "\\n")

@pytest.fixture(scope="session")
def zookeeper():
    needs.check("zookeeper")
    note("up")
    yield
    note("down")
"""
TESTS = """
import pytest
from tests.services import needs
from {conftest} import note

def test_first():
    note("first")

@pytest.mark.parametrize("number", range(3))
def test_with_server(zookeeper, number):
    note("with server")

@pytest.mark.parametrize("number", range(3))
def test_after(number):
    note("after")

def test_without_mark(request):
    with pytest.raises(RuntimeError, match="write @pytest.mark.zookeeper at it"):
        needs.check("zookeeper")
"""


def run(directory: Path, *options: str) -> tuple[str, list[str]]:
    """Return what pytest printed of a run of `TESTS`, and what the tests noted."""
    log = directory / "log"
    (directory / "conftest.py").write_text(CONFTEST.format(log=str(log)))
    (directory / "notes.py").write_text("from conftest import note\n")
    (directory / "test_it.py").write_text(TESTS.format(conftest="notes"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    command += ["--rootdir", str(directory), "--import-mode=prepend", *options, str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout + done.stderr, log.read_text().split("\n")[:-1] if log.exists() else []


def test_a_server_ends_with_the_last_test_that_needs_it(tmp_path: Path) -> None:
    outcome, notes = run(tmp_path)
    assert "8 passed" in outcome, outcome
    assert notes == ["first", "up", *["with server"] * 3, "down", *["after"] * 3]


@pytest.mark.slow
def test_on_a_worker_a_server_ends_with_its_group(tmp_path: Path) -> None:
    outcome, notes = run(tmp_path, "-n", "1", "--dist", "loadgroup", "--no-loadscope-reorder")
    assert "8 passed" in outcome, outcome
    assert notes == ["up", *["with server"] * 3, "down", "first", *["after"] * 3]


@pytest.mark.slow
def test_a_group_stays_on_one_worker(tmp_path: Path) -> None:
    outcome, notes = run(tmp_path, "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "-m", "zookeeper")
    assert "3 passed" in outcome, outcome
    assert notes == ["up", *["with server"] * 3, "down"]


class Item:
    def __init__(self, nodeid: str, *marks: pytest.Mark) -> None:
        self.nodeid, self.marks = nodeid, {mark.name: mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)


def items_of(cases: int) -> Any:
    sampled, slow = pytest.mark.sampled(2).mark, pytest.mark.slow.mark
    return [Item("a"), *(Item(f"b[{number}]", sampled) for number in range(cases)), Item("slow", slow)]


@pytest.mark.parametrize(("by_group", "names"), [(False, ["b[1]"]), (True, ["b[1]", "slow"])])
def test_cases_of_a_sample_and_for_workers_slow_tests_are_left_to_the_faults_tier(
    by_group: bool, names: list[str]
) -> None:
    assert sorted(item.nodeid for item in left_out(items_of(2), by_group=by_group, tier="quick")) == names


def test_the_parts_of_the_faults_tier_cover_each_left_out_test_once() -> None:
    items = items_of(40)
    out = left_out(items, by_group=True, tier="quick")
    parts = [out - left_out(items, by_group=True, tier=f"{part}/3") for part in (1, 2, 3)]
    assert all(parts)
    assert sorted(item.nodeid for part in parts for item in part) == sorted(item.nodeid for item in out)


def test_the_seeds_of_a_test_run_on_one_day_and_are_spread_over_the_parts_of_a_night() -> None:
    """Divide 20 tests with 5 seeds each: each is whole on one of six days, and spread over a night."""
    tests = [[f"test.py::test[{name}-seed{number}-x]" for number in range(5)] for name in range(20)]
    days = [{day for day in range(1, 7) for item in of if in_part(item, f"{day}/6")} for of in tests]
    assert [len(item) for item in days] == [1] * 20
    assert len(set.union(*days)) > 1
    assert any(len({k for k in range(1, 9) for item in of if in_part(item, f"full {k}/8")}) > 1 for of in tests)


def test_the_parts_of_all_cases_together_are_all_tests_each_once() -> None:
    items = items_of(40)
    assert left_out(items, by_group=True, tier="full") == left_out(items, by_group=True, tier="full ") == set()
    parts = [set(items) - left_out(items, by_group=True, tier=f"full {part}/3") for part in (1, 2, 3)]
    assert all(parts)
    assert sorted(item.nodeid for part in parts for item in part) == sorted(item.nodeid for item in items)


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "passed"), [("zookeeper", "3 passed"), ("not zookeeper", "5 passed")])
def test_the_marks_follow_from_the_fixtures(tmp_path: Path, chosen: str, passed: str) -> None:
    outcome, _ = run(tmp_path, "-m", chosen)
    assert passed in outcome, outcome
