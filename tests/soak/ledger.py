"""The GPU ledger for as long as one likes: histories (`tests.gpuid.history`) one after the other, each of its own seed.

In turn they are on one ZooKeeper server, on an ensemble of three whose servers are killed and restarted, and on the
machine's files.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.gpuid import history
from tests.services.zookeeper import ZooKeeper
from tests.soak.problem import Problem

ROUND_S = 120.0
MIN_ROUND_S = 20.0


def rounds(seconds: float, seed: int) -> Iterator[str]:
    """Yield a line for each history; stop after ``seconds``. Raises Problem, and leaves that history's files."""
    choice, deadline = random.Random(seed), time.monotonic() + seconds
    directory = Path(tempfile.mkdtemp(prefix="dlapp-soak-ledger-"))
    with contextlib.ExitStack() as stack:
        servers = {
            "one server": stack.enter_context(ZooKeeper.start()),
            "three servers": stack.enter_context(ZooKeeper.start(3)),
            "the machine": None,
        }
        number = 0
        lasts_s = max(MIN_ROUND_S, min(ROUND_S, seconds / len(servers)))
        while time.monotonic() < deadline or number == 0:
            for name, zookeeper in servers.items():
                if number and time.monotonic() >= deadline:
                    break
                number += 1
                own = choice.getrandbits(31)
                kinds = (*history.KINDS, "server") if name == "three servers" else history.KINDS
                place = directory / f"round-{number}"
                found = history.run(
                    place, lasts_s=lasts_s, seed=own, zookeeper=zookeeper, workers=8, kinds=kinds, mixed=True
                )
                message = f"round {number}, {name}, seed {own}: {found.operations} operations, {_faults(found)}"
                if found.problems:
                    more = "".join(f"\n    {problem}" for problem in found.problems)
                    raise Problem(f"{message}{more}\n    its files: {place}")
                shutil.rmtree(place)
                yield message
    shutil.rmtree(directory)


def _faults(found: history.History) -> str:
    return ", ".join(f"{count} {name}" for name, count in found.faults.items())
