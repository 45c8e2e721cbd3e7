"""The table of all documented commands: each with the tier that runs it, and the minutes that it last took.

Tiers:

- ``ci``: `.ci/run` calls it itself;
- ``test``: tests/documented/test_pages.py runs it in ``make test``, and so in `.ci/run`;
- ``slow``: the same in ``make test-faults``, a part of it in `.ci/run`;
- ``beside``: tests/beside/in_pages.py runs it with a real TensorBoard and JupyterLab, by ``make test-beside``;
- ``frameworks``: tests/end_to_end/frameworks/in_pages.py runs it with the frameworks of PyPI, by ``make
  test-frameworks``;
- ``nightly``: a unit of ``make nightly``.

Instead of a tier a command may have one of `REASONS` why none runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.documented.pages import command_blocks
from tests.documented.scenarios import Section

FILE = Path(__file__).with_name("table.txt")

TIERS = ("ci", "test", "slow", "beside", "frameworks", "nightly")

REASONS = {
    "hardware": "needs GPUs of NVIDIA",
    "systemd": "needs systemd as the first process",
    "cluster": "needs another's cluster, or several machines",
    "registry": "needs another's registry",
    "person": "needs a person's account elsewhere",
}

MAX_REASONS = 10
"""At most one block in this many carries a reason."""


@dataclass(frozen=True)
class CommandRow:
    """A line of the table; ``minutes`` is None if the command was never measured."""

    what: str
    tier: str
    minutes: float | None


def read(file: Path = FILE) -> list[CommandRow]:
    """Return the rows, in the order of the file.

    Raises:
        ValueError: a line is not a tier or reason, minutes or ``-``, and a command.
    """
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        tier, minutes, what = [*line.split(maxsplit=2), "", ""][:3]
        if tier not in (*TIERS, *REASONS) or not what:
            raise ValueError(f"{file}:{number}: is not TIER MINUTES COMMAND: {line}")
        rows.append(CommandRow(what, tier, None if minutes == "-" else float(minutes)))
    return rows


def write_minutes(minutes: dict[str, float], file: Path = FILE) -> None:
    """Write what commands took into the table [min]."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        words = line.split(maxsplit=2)
        if len(words) == 3 and words[0] in TIERS and words[2] in minutes:
            line = f"{words[0]:<9}{minutes[words[2]]:>6.2f}  {words[2]}"
        lines.append(line)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def sections(tier: str) -> dict[Section, frozenset[str]]:
    """Return the sections of pages that a tier runs, with the first commands of the blocks that no tier runs."""
    tiers = {row.what: row.tier for row in read()}
    found: dict[Section, set[str]] = {}
    left_out: dict[Section, set[str]] = {}
    for name, block in command_blocks().items():
        section = (block.page, block.section)
        if tiers.get(name) == tier:
            found.setdefault(section, set()).add(name)
        else:
            left_out.setdefault(section, set()).add(block.name)
    return {section: frozenset(left_out.get(section, ())) for section in found}
