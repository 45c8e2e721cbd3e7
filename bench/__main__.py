"""python -m bench NAME: run bench/NAME.py, print its figures, keep them in bench/results/NAME.json."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import Row
from tests.services.install import install, missing

HERE = Path(__file__).parent


def main(argv: list[str]) -> int:
    """Run the benches that are named; 2 for a name that is none."""
    names = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))
    if not argv or any(name not in names for name in argv):
        print(f"Usage: make bench NAME=...   one or more of: {', '.join(names)}", file=sys.stderr)
        return 2
    # What is installed is compiled; where this is set, each start of ours would compile it all again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    modules = {name: importlib.import_module(f"bench.{name}") for name in argv}
    if lacking := _lacking([need for module in modules.values() for need in getattr(module, "NEEDS", ())]):
        print(f"Error: {' '.join(argv)} cannot be measured here: {lacking}", file=sys.stderr)
        return 1
    for name, module in modules.items():
        began = time.time()
        rows: list[Row] = module.rows()
        print(f"{name}: {_cpu()}, {os.cpu_count()} cores, Python {platform.python_version()}")
        print(table(rows))
        target = HERE / "results" / f"{name}.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(kept(rows, began), indent=2) + "\n", encoding="utf-8")
        print(f"written: {target}")
    return 0


def _lacking(programs: Sequence[str]) -> str:
    """Install what benches need (their ``NEEDS``) as for the tests; what is still not there, and its package."""
    if absent := [need for need in missing() if need.program in programs]:
        install(sorted({need.package for need in absent}))
    absent = [need for need in missing() if need.program in programs]
    names = ", ".join(need.program for need in absent)
    packages = " ".join(sorted({need.package for need in absent}))
    return f"no {names}; as root: apt-get install {packages}" if absent else ""


def table(rows: list[Row]) -> str:
    """The figures as text, one line each."""
    lines = [("name", "ratio", "goal", "", "conditions")]
    for row in rows:
        sign = "<=" if row.better == "lower" else ">="
        conditions = ", ".join(f"{key}={_short(value)}" for key, value in row.conditions.items())
        lines.append((row.name, f"{row.ratio:.2f}", f"{sign} {row.goal:g}", "ok" if row.met else "MISSED", conditions))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[4]]) for line in lines
    )


def kept(rows: list[Row], began: float) -> list[dict[str, Any]]:
    """Return what is kept of the figures: an object for each, its conditions with those of the machine and the time.

    Args:
        began: when the measuring did [s since 1970].
    """
    of_all = {
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "took_s": round(time.time() - began, 1),
        "machine": {
            "cores": os.cpu_count(),
            "cpu": _cpu(),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
    }
    return [asdict(row) | {"conditions": row.conditions | of_all} for row in rows]


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
