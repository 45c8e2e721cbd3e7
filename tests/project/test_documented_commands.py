"""The table of documented commands has each that exists, and no other; each has a tier, or one of few reasons."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from dlapp.locations import AUTO, WEBHDFS
from tests.documented.pages import ROOT, Block, blocks, command_blocks, pages
from tests.documented.scenarios import SCENARIOS
from tests.documented.table import MAX_REASONS, REASONS, TIERS, read, sections, write_minutes

pytestmark = pytest.mark.xdist_group("project")

ROWS = read()
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def calls() -> list[str]:
    """Return the calls of make in the table."""
    return [row.what for row in ROWS if row.what.startswith("make ")]


def page_of(directory: Path, text: str) -> tuple[Block, ...]:
    file = directory / "page.md"
    file.write_text(text, encoding="utf-8")
    return blocks(str(file))


def test_each_target_of_the_makefile_has_a_row_and_each_row_a_target() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE))
    phony = MAKEFILE.partition(".PHONY:")[2].partition("\n\n")[0].replace("\\", " ").split()
    assert set(phony) == targets
    assert {call.split()[1] for call in calls()} == targets


def test_each_call_of_make_in_a_page_has_a_row() -> None:
    documented = {call for page in pages() for block in blocks(page) if block.is_commands for call in block.targets}
    assert len(documented) > 20
    assert documented - set(calls()) == set()


def test_each_block_of_commands_has_a_row_and_each_row_a_block() -> None:
    assert [row.what for row in ROWS if not row.what.startswith("make ")] == list(command_blocks())


def test_no_row_is_duplicated() -> None:
    assert [what for what, count in Counter(row.what for row in ROWS).items() if count > 1] == []


def test_each_part_and_version_that_a_target_divides_into_is_a_row() -> None:
    assert {call for call in calls() if "test-faults" in call} == {f"make test-faults FULL={k}/8" for k in range(1, 9)}
    assert {call for call in calls() if "DLAPP_TEST_HDFS" in call} == {
        f"make test-hadoop DLAPP_TEST_HDFS={way} DLAPP_FAULTS=full ARGS=tests/storage" for way in (WEBHDFS, AUTO)
    }
    versions = re.findall(r"^VERSIONS \?= (.*)", MAKEFILE, re.MULTILINE)[0].split()
    assert {call for call in calls() if "test-versions" in call} == {
        f"make test-versions VERSIONS={v}" for v in versions
    }
    soaks = {path.stem for path in (ROOT / "tests" / "soak").glob("*.py")} - {"__main__", "problem"}
    assert {match[1] for call in calls() if (match := re.match(r"make soak NAME=(\w+) ", call))} == soaks


def test_commands_of_the_daily_run_are_in_its_script() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [row.what for row in ROWS if row.tier == "ci" and row.what not in script] == []
    assert any(line.startswith("make test-faults PART=") for line in script)


def test_at_most_one_block_in_ten_carries_a_reason_and_no_call_of_make_does() -> None:
    with_reason = [row.what for row in ROWS if row.tier in REASONS]
    assert len(REASONS) == 5
    assert len(with_reason) * MAX_REASONS <= len(command_blocks())
    assert [what for what in with_reason if what.startswith("make ")] == []


def test_each_example_has_a_page_whose_commands_a_tier_runs() -> None:
    names = {path.name for path in (ROOT / "examples").iterdir() if path.is_dir()}
    run = {row.what.split("/")[1] for row in ROWS if row.what.startswith("examples/") and row.tier in TIERS}
    assert run == names


def test_the_blocks_of_a_section_that_need_one_another_are_in_one_tier() -> None:
    tiers = {row.what: row.tier for row in ROWS}
    found: dict[tuple[str, str], set[str]] = {}
    for name, block in command_blocks().items():
        if tiers[name] in TIERS:
            found.setdefault((block.page, block.section), set()).add(tiers[name])
    divided = {section for section, of in found.items() if len(of) > 1}
    assert divided == {("docs/team.md", "Set it up")}  # an installation, and directories


def test_each_scenario_is_of_a_section_that_runs() -> None:
    run = {section for tier in TIERS for section in sections(tier)}
    assert set(SCENARIOS) - run == set()


def test_a_block_without_commands_has_no_dlapp_command() -> None:
    hidden = [
        f"{block.page}:{block.line}"
        for page in pages()
        for block in blocks(page)
        if not block.is_commands and not block.file and not block.language
        for line in block.text.splitlines()
        if re.match(r"(dlapp-[a-z]+|make [a-z]|git |docker )", line)
    ]
    assert hidden == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("    dlapp-list\n", ["dlapp-list"]),
        ("    $ dlapp-list\n    ID\n    $ ls\n", ["dlapp-list", "ls"]),
        ("    ./run.sh  # now\n", ["./run.sh  # now\n"]),
        ("```sh\nx=1\n```\n", ["x=1\n"]),
        ("<!-- here -->\n    make demo\n", ["make demo\n"]),
        ("    . venv/bin/activate\n", [". venv/bin/activate\n"]),
        ("    .\n    └── code\n", []),
        ("    [resources]\n    gcores=1\n", []),
        ("    yarn:\n      python: a\n", []),
        ("```text\ndlapp-launcher [options]\n```\n", []),
        ("`code/start.sh`:\n\n    make x\n", []),
        ("words\n    dlapp-list\n", []),
    ],
)
def test_commands_are_found_in_the_text_of_a_page(text: str, expected: list[str], tmp_path: Path) -> None:
    found = [
        command for block in page_of(tmp_path, f"# A\n\n{text}") if block.is_commands for command, _ in block.commands
    ]
    assert [command.strip() for command in found] == [command.strip() for command in expected]


@pytest.mark.parametrize("line", ["never 1 make x", "test 1", "test", "test soon make x"])
def test_a_line_that_is_no_row_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "table").write_text(f"# head\n\n{line}\n")
    with pytest.raises(ValueError, match=r".+"):
        read(tmp_path / "table")


def test_minutes_are_written_to_the_rows_that_were_measured(tmp_path: Path) -> None:
    file = tmp_path / "table"
    file.write_text("# head\n\nnightly  -  make a\nnightly  -  make b\ncluster  -  x: make a\n")
    write_minutes({"make a": 12.345, "make c": 1.0}, file)
    assert [(row.what, row.minutes) for row in read(file)] == [("make a", 12.35), ("make b", None), ("x: make a", None)]
    assert file.read_text().startswith("# head\n\n")
