"""The nightly run: every documented command that is too long for `.ci/run`, as units of a resumable run.

    python -m tests.nightly            all parts, one after another
    python -m tests.nightly 2          the second part; also 2/9
    python -m tests.nightly list       the parts, their units and what is known of each
    python -m tests.nightly minutes    write into the table (tests/documented/table.txt) what each took last, here and
                                       in `make test-faults ARGS="-p tests.services.times"`

The units are the rows of the table with the tier ``nightly``: a call of make, or a section of a page. A part is at most
`PART_MIN` long by the minutes in the table; a unit that no time is left for is left to the next call. Each result is
kept with its commit in .cache/nightly, and what has passed at the present commit is not run again. A working tree with
changes has no commit, so its units run again each time. One failure stops no other unit.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.closes.copy import copy_tree
from tests.documented import table
from tests.documented.pages import blocks, command_blocks
from tests.documented.scenarios import Section
from tests.services.install import required

ROOT = Path(__file__).parents[1]
DIRECTORY = ROOT / ".cache" / "nightly"

PART_MIN = 80.0
"""Minutes of a part at most; who calls it has 90."""

UNMEASURED_MIN = 20.0
"""What a unit counts that was never measured [min]."""

END_S = 60.0
"""The time that a unit has to end its servers when its own is over [s]."""

PASSED, FAILED, SKIPPED, CUT = "passed", "failed", "skipped", "cut off"

IN_A_COPY = ("make fix", "make screenshots")
"""Calls that change the tree; they run in a copy, with an environment of its own."""

NEED_ROOT = ("make test-images", "make test-users", "make bench NAME=docker")
"""Calls that root alone can run; what other users lack, tests skip."""

MAY_SKIP = ("make test-versions", "make test-frameworks")
"""Calls whose tests are skipped where an old Hadoop lacks what they test, or no MXNet is for this Python."""


@dataclass(frozen=True)
class Unit:
    """A call of make, or a section of a page, with one result.

    Args:
        name: the call of make, or the section of a page.
        rows: what the table calls its commands.
        minutes: by the table; None: never measured.
        command: its words.
    """

    name: str
    rows: tuple[str, ...]
    minutes: float | None
    command: tuple[str, ...]

    @property
    def is_section(self) -> bool:
        """Return whether it is a section of a page."""
        return not self.name.startswith("make ")


@dataclass(frozen=True)
class Result:
    """The end of a unit; ``why`` of a skip. A line of the file of results."""

    unit: str
    commit: str
    state: str
    began: str
    minutes: float
    log: str = ""
    why: str = ""


class UsageError(ValueError):
    """A part that there is not."""


def units(rows: Sequence[table.CommandRow], sections: Sequence[Section]) -> list[Unit]:
    """Return the units of these rows, in their order.

    Args:
        rows: of the table.
        sections: those that run at night; a call of make that one of them has is a part of it.
    """
    unit_of: dict[str, Section] = {}
    for section in sections:
        for block in (item for item in blocks(section[0]) if item.section == section[1] and item.is_commands):
            unit_of |= dict.fromkeys([f"{block.page}: {block.name}", *block.targets], section)
    found: dict[str, list[table.CommandRow]] = {}
    commands: dict[str, tuple[str, ...]] = {}
    for row in (row for row in rows if row.tier == "nightly"):
        if (place := unit_of.get(row.what)) is not None:
            name = f"{place[0]} {place[1]}".strip()
            test = f"tests/documented/in_nightly.py::test_the_commands_of_a_section_run_as_printed[{name}]"
            command: tuple[str, ...] = (sys.executable, "-m", "pytest", "-q", "-o", "faulthandler_timeout=4800", test)
        else:
            name, command = row.what, ("sh", "-c", f"exec {row.what}")
        found.setdefault(name, []).append(row)
        commands[name] = command
    return [
        Unit(
            name,
            tuple(row.what for row in of),
            max((row.minutes for row in of if row.minutes is not None), default=None),
            commands[name],
        )
        for name, of in found.items()
    ]


def parts(all_units: Sequence[Unit], limit_min: float = PART_MIN) -> list[list[Unit]]:
    """Divide units into parts, each of at most so many minutes by the table; the order stays."""
    found: list[list[Unit]] = []
    used = 0.0
    for unit in all_units:
        takes = UNMEASURED_MIN if unit.minutes is None else unit.minutes
        if not found or used + takes > limit_min:
            found.append([])
            used = 0.0
        found[-1].append(unit)
        used += takes
    return found


def part_of(text: str, count: int) -> int:
    """Read a part, ``2`` or ``2/9``, as an index.

    Raises:
        UsageError: there is no such part.
    """
    match = re.fullmatch(r"([1-9]\d{0,3})(?:/([1-9]\d{0,3}))?", text)
    if match is None or int(match[1]) > count or (match[2] and int(match[2]) != count):
        raise UsageError(f"PART={text}: there are the parts 1 to {count}, as in PART=1 or PART=1/{count}")
    return int(match[1]) - 1


class Nights:
    """Runs units, and keeps their results.

    Args:
        root: the working tree.
        directory: where results and logs are kept.
        limit_min: see `PART_MIN`.
    """

    def __init__(self, root: Path = ROOT, directory: Path = DIRECTORY, limit_min: float = PART_MIN) -> None:
        self._root, self._directory, self._limit_s = root, directory, limit_min * 60

    def commit(self) -> str:
        """Return the commit of the working tree, with ``+changes`` if it has some."""
        commit = self._git("rev-parse", "HEAD")
        return f"{commit}+changes" if self._git("status", "--porcelain") else commit

    def results(self) -> dict[str, Result]:
        """Return the last result of each unit."""
        file = self._directory / "results.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return {result.unit: result for result in (Result(**json.loads(line)) for line in lines)}

    def has_passed(self, unit: Unit) -> bool:
        """Return whether a unit has passed at the present commit."""
        last, commit = self.results().get(unit.name), self.commit()
        return last is not None and last.commit == commit and last.state == PASSED and not commit.endswith("+changes")

    def run_part(self, part: Sequence[Unit]) -> None:
        """Run the units of a part that have not passed."""
        began, ran = time.monotonic(), False
        for unit in part:
            if self.has_passed(unit):
                print(f"{unit.name}: has passed at this commit", flush=True)
                continue
            left_s = max(0.0, self._limit_s - (time.monotonic() - began))
            if ran and left_s <= (unit.minutes or 0) * 60:
                print(f"{unit.name}: no time is left in this part; call it again", flush=True)
                continue
            self.run_unit(unit, left_s, is_first=not ran)
            ran = True

    def run_unit(self, unit: Unit, limit_s: float, *, is_first: bool) -> None:
        """Run a unit and keep its result.

        Args:
            unit: what runs.
            limit_s: the time that is left in its part [s].
            is_first: it has the whole time of a part, so to exceed it is its failure.
        """
        commit, began, start = self.commit(), datetime.datetime.now(datetime.UTC), time.monotonic()
        if why := missing(unit):
            state = FAILED if required() else SKIPPED
            print(f"{unit.name}: {state}, {why}", flush=True)
            self._keep(Result(unit.name, commit, state, f"{began:%Y-%m-%d %H:%M}", 0.0, why=why))
            return
        log = self._directory / f"{re.sub(r'[^A-Za-z0-9]+', '-', unit.name).strip('-')[:80]}-{commit[:12]}.log"
        self._directory.mkdir(parents=True, exist_ok=True)
        print(f"{unit.name}: runs; {log}", flush=True)
        code = self._execute(unit, log, limit_s)
        minutes = (time.monotonic() - start) / 60
        if code is None:
            state, why = (FAILED, f"took over {limit_s / 60:.0f} minutes") if is_first else (CUT, "the part is over")
        else:
            state, why = (FAILED, f"exit code {code}") if code else (PASSED, "")
        print(f"{unit.name}: {state} after {minutes:.1f} min {why}".rstrip(), flush=True)
        began_text = f"{began:%Y-%m-%d %H:%M}"
        self._keep(Result(unit.name, commit, state, began_text, round(minutes, 1), str(log), why))

    def _execute(self, unit: Unit, log: Path, limit_s: float) -> int | None:
        """Return the exit code; None: its time was over, and its processes are killed."""
        environment, where = dict(os.environ), self._root
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        if must_be_complete(unit):
            environment["DLAPP_REQUIRE"] = "nightly"
        if unit.name.startswith(IN_A_COPY):
            where = self._directory / "tree"
            shutil.rmtree(where, ignore_errors=True)
            copy_tree(where)
            environment.pop("VENV", None)
        # A call of make inside a call of make would take on what that was given, as PART.
        for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "PART", "FULL", "ARGS", "NAME"):
            environment.pop(name, None)
        with log.open("wb") as file:
            process = subprocess.Popen(
                unit.command,
                cwd=where,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:
                    _end(process)

    def _keep(self, result: Result) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(vars(result)) + "\n")

    def _git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self._root, capture_output=True, text=True, check=True)
        return done.stdout.strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a unit's processes; servers that it started are ended by those that get SIGTERM."""
    os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def must_be_complete(unit: Unit) -> bool:
    """Return whether a test of a unit that is skipped has failed, for its tools can be had here."""
    return os.geteuid() == 0 and not unit.name.startswith(MAY_SKIP)


def missing(unit: Unit) -> str:
    """Return why a unit cannot run on this machine; empty: it can."""
    if os.geteuid() != 0 and (unit.is_section or unit.name.startswith(NEED_ROOT)):
        return "it needs root"
    if unit.name.startswith("make images"):
        text = (ROOT / "docker" / "base" / "Dockerfile").read_text(encoding="utf-8")
        base = re.findall(r"^FROM (\S+)", text, re.MULTILINE)[0]
        try:
            found = subprocess.run(["docker", "manifest", "inspect", base], capture_output=True, timeout=120)
        except (FileNotFoundError, subprocess.TimeoutExpired):
            return "it needs Docker and a registry"
        return "" if found.returncode == 0 else f"it needs Docker and a registry with {base.partition('@')[0]}"
    return ""


def measured(directory: Path = ROOT / ".cache" / "times") -> dict[str, float]:
    """Return what the commands of pages took in the last ``make test ARGS="-p tests.services.times"`` [min]."""
    rows: dict[str, list[str]] = {}
    for name, block in command_blocks().items():
        rows.setdefault(f"[{block.page} {block.section}".strip() + "]", []).append(name)
    found: dict[str, float] = {}
    for file in sorted(directory.glob("*.jsonl")):
        for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            test, _, section = line["test"].partition("[")
            if test.startswith("tests/documented/test_pages.py") and line["phase"] == "call":
                found |= dict.fromkeys(rows.get(f"[{section}", ()), line["wall"] / 60)
    return found


def show(nights: Nights, all_parts: Sequence[Sequence[Unit]]) -> bool:
    """Print the last result of each unit; return whether all have passed at this commit, or were skipped."""
    results, commit = nights.results(), nights.commit()
    print(f"commit {commit}")
    print(f"{'PART':<6}{'RESULT':<10}{'MINUTES':>8}  {'COMMIT':<14}{'BEGAN':<18}UNIT")
    good = True
    for number, part in enumerate(all_parts, 1):
        for unit in part:
            last = results.get(unit.name)
            if last is None:
                minutes = "-" if unit.minutes is None else f"{unit.minutes:.1f}"
                print(f"{number:<6}{'not run':<10}{minutes:>8}  {'-':<14}{'-':<18}{unit.name}")
            else:
                short = last.commit[:12] + ("+" if "+" in last.commit else "")
                why = f" ({last.why})" if last.why else ""
                print(f"{number:<6}{last.state:<10}{last.minutes:>8.1f}  {short:<14}{last.began:<18}{unit.name}{why}")
            good = good and last is not None and last.commit == commit and last.state in (PASSED, SKIPPED)
    return good


def main(arguments: Sequence[str], nights: Nights | None = None) -> int:
    """Run what the arguments say; 1 if a unit of it has not passed, 2 for a wrong part."""
    nights = nights or Nights()
    all_parts = parts(units(table.read(), list(table.sections("nightly"))))
    what = arguments[0] if arguments else ""
    if what == "list":
        show(nights, all_parts)
        return 0
    if what == "minutes":
        last = nights.results()
        taken = {
            row: last[unit.name].minutes
            for part in all_parts
            for unit in part
            if unit.name in last and last[unit.name].state == PASSED
            for row in unit.rows
        }
        table.write_minutes(taken | measured())
        return 0
    try:
        chosen = [all_parts[part_of(what, len(all_parts))]] if what else all_parts
    except UsageError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    for part in chosen:
        nights.run_part(part)
    return 0 if show(nights, chosen) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # with the unit that runs
    sys.exit(main(sys.argv[1:]))
