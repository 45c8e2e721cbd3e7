"""Measure each test: ``make test ARGS="-p tests.services.times"`` writes where the time goes to .cache/times/.

One line of JSON for each phase of a test and each fixture that tests share: wall time, processor time of the process,
and of its children that ended meanwhile [s].
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parents[2] / ".cache" / "times"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with _noted(item.nodeid, "setup"):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _noted(item.nodeid, "call"):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    with _noted(item.nodeid, "teardown"):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    if fixturedef.scope == "function":
        return (yield)
    with _noted(request.node.nodeid, f"fixture {fixturedef.argname}"):
        return (yield)


@contextlib.contextmanager
def _noted(test: str, phase: str) -> Iterator[None]:
    before = _now()
    try:
        yield
    finally:
        wall, own, children = (round(after - then, 4) for after, then in zip(_now(), before, strict=True))
        line = {"test": test, "phase": phase, "wall": wall, "own": own, "children": children}
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        with (DIRECTORY / f"{worker}.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")


def _now() -> tuple[float, float, float]:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime
