"""Compare a bench of the working tree with that of an earlier commit: python -m bench._against COMMIT NAME...

Both trees run their own ``make bench NAME=...``, each in an environment of its own, by turns on this machine: a slow
hour of the machine strikes both. The earlier commit has a clone in .cache/against, made and installed once.

A figure of a tree is its ratio to the peer. Printed is new to old, of the medians over the rounds, and the smallest and
largest of the rounds. A row whose every round is on the wrong side is slower.

bench/history.json has the commit of each stage and its figures; instead of COMMIT a stage can be named, and an empty
COMMIT is the last stage.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import Row

HERE = Path(__file__).parent.parent
HISTORY = Path(__file__).parent / "history.json"
ROUNDS = int(os.environ.get("DLAPP_BENCH_AGAINST_ROUNDS", "3"))
"""Two are too few to see a spread."""

Figures = Mapping[str, tuple[float, str]]
"""Rows of one run: name -> ratio and which side is better."""


def main(argv: list[str], here: Path = HERE, rounds: int = ROUNDS) -> int:
    """Compare; 2 for a commit that is none."""
    if len(argv) < 2:
        print("Usage: make bench-against COMMIT=... NAME=...", file=sys.stderr)
        return 2
    commit, *names = argv
    commit = commit_of(commit)
    found = _git(here, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if found.returncode:
        print(f"Error: {commit}: no such commit in {here}; see bench/history.json", file=sys.stderr)
        return 2
    commit = found.stdout.strip()
    there = clone(here, commit)
    for name in names:
        new: list[Figures] = []
        old: list[Figures] = []
        for round_ in range(rounds):
            by_turns = [(there, old), (here, new)]
            for tree, runs in by_turns if round_ % 2 else reversed(by_turns):  # neither always finds the warm caches
                runs.append(run(tree, name))
        rows = compare(new, old, {"old_commit": commit, "new_commit": described(here)})
        print(f"{name}: new to old, {described(here)} to {commit[:12]}, {rounds} rounds")
        print(table(rows))
        if only := sorted({*new[0], *old[0]} - {row.name for row in rows}):
            print(f"not in all runs: {', '.join(only)}")
        target = here / "bench" / "results" / f"against-{name}.json"
        target.write_text(json.dumps([vars(row) for row in rows], indent=2) + "\n", encoding="utf-8")
        print(f"written: {target}", flush=True)
    return 0


def commit_of(name: str) -> str:
    """Return the commit of a stage, of the last one if the name is empty; any other name is a commit."""
    stages = {str(one["stage"]): str(one["commit"]) for one in json.loads(HISTORY.read_text(encoding="utf-8"))}
    return stages.get(name, name) or list(stages.values())[-1]


def clone(here: Path, commit: str) -> Path:
    """Return a clone of ``here`` at a commit; it is made once."""
    there = here / ".cache" / "against" / commit[:12]
    if not there.exists():
        begun = there.with_suffix(".begun")
        shutil.rmtree(begun, ignore_errors=True)
        begun.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(here), str(begun)], check=True)
        subprocess.run(["git", "-C", str(begun), "checkout", "--quiet", "--detach", commit], check=True)
        begun.rename(there)
    return there


def described(here: Path) -> str:
    """The commit of the working tree, marked if it has changes."""
    return _git(here, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").stdout.strip()


def run(tree: Path, name: str) -> Figures:
    """Run a bench in a tree; it is that tree's own, and so is its environment."""
    result = tree / "bench" / "results" / f"{name}.json"
    result.unlink(missing_ok=True)
    # What the caller's make was told is not for the other tree.
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKEOVERRIDES")}
    argv = ["make", "-C", str(tree), "bench", f"NAME={name}"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"Error: make bench NAME={name} in {tree}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    print(f"{tree}: {name} measured", file=sys.stderr, flush=True)
    rows: list[dict[str, Any]] = json.loads(result.read_text(encoding="utf-8"))
    return {row["name"]: (float(row["ratio"]), str(row["better"])) for row in rows}


def compare(new: Sequence[Figures], old: Sequence[Figures], conditions: Mapping[str, object]) -> list[Row]:
    """Return new to old for each row that both have; ``new`` and ``old`` have a run for each round."""
    found = []
    for name, (_, better) in new[0].items():
        if not all(name in one for one in (*new, *old)):
            continue
        ours, before = [one[name][0] for one in new], [one[name][0] for one in old]
        rounds = [a / b if b else float(a > 0) for a, b in zip(ours, before, strict=True)]
        whole = statistics.median(before)
        found.append(
            Row(
                name=name,
                ratio=statistics.median(ours) / whole if whole else statistics.median(rounds),
                goal=1.0,
                better="lower" if better == "lower" else "higher",
                conditions={"new": ours, "old": before, "rounds": rounds, **conditions},
            )
        )
    return found


def is_slower(row: Row) -> bool:
    """Return whether every round of a row is on the wrong side."""
    rounds: list[float] = row.conditions["rounds"]
    return min(rounds) > 1.0 if row.better == "lower" else max(rounds) < 1.0


def table(rows: Sequence[Row]) -> str:
    """The comparison as text, a line for each row."""
    lines = [("name", "better", "new/old", "least", "most", "")]
    for row in rows:
        rounds = row.conditions["rounds"]
        mark = "SLOWER" if is_slower(row) else "" if row.met else "within the spread"
        lines.append((row.name, row.better, f"{row.ratio:.3f}", f"{min(rounds):.3f}", f"{max(rounds):.3f}", mark))
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[5]]).rstrip()
        for line in lines
    )


def _git(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
