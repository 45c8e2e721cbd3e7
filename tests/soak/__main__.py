"""python -m tests.soak NAME [--seconds N] [--seed N]: run tests/soak/NAME.py for so long, under faults by the seed.

A sweep also has ``--engine yarn``, ``--trials N`` for another number than 300, and ``--sampler random`` for that alone.

A soak goes in rounds. ``NAME.rounds(seconds, seed)`` yields a line for each round that is over, and raises `Problem` at
the first that shows one; the frame prints the lines with the time, and the seed with which a run can be repeated.
Everything else is the soak's own: what it starts, it ends, also when the generator is closed early.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import random
import sys
import time
from pathlib import Path

from tests.soak.problem import Problem

HERE = Path(__file__).parent
HOUR_S = 3600.0


def main(argv: list[str]) -> int:
    """Run one soak; 1: it found a problem, 2: there is no such soak."""
    names = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("__main__", "problem"))
    parser = argparse.ArgumentParser(prog="make soak", description="Run one part under faults for a long time.")
    parser.add_argument("name", choices=names)
    parser.add_argument("--seconds", type=float, default=HOUR_S)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--engine", choices=("local", "yarn"), default=None, help="that runs a sweep")
    parser.add_argument("--trials", type=int, default=None, help="of a sweep, a multiple of 50")
    parser.add_argument(
        "--sampler", choices=("grid", "random", "list"), default=None, help="of a sweep; else each in turn"
    )
    asked = parser.parse_args(argv)
    options = {name: value for name in ("engine", "trials", "sampler") if (value := getattr(asked, name)) is not None}
    if options and asked.name != "sweep":
        parser.error(f"--{', --'.join(options)}: only a sweep has them")
    print(f"{asked.name}: {asked.seconds:.0f} s, seed {asked.seed}", flush=True)
    began = time.monotonic()
    try:
        with contextlib.closing(
            importlib.import_module(f"tests.soak.{asked.name}").rounds(asked.seconds, asked.seed, **options)
        ) as rounds:
            for line in rounds:
                print(f"{_elapsed(began)}  {line}", flush=True)
    except Problem as problem:
        print(f"{_elapsed(began)}  {problem}", flush=True)
        return 1
    print(f"{_elapsed(began)}  no problem in {asked.seconds:.0f} s, seed {asked.seed}", flush=True)
    return 0


def _elapsed(began: float) -> str:
    seconds = int(time.monotonic() - began)
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
