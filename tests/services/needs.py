"""Needs of a test beside Python: they follow from its fixtures, and decide which tests run side by side.

Each need is a mark (``-m "not hadoop"``), set where a test asks for one of the fixtures below. A test that starts a
server without a fixture has the mark written at it; `check` refuses a server to a test that has no mark.

With ``pytest -n 2 --dist loadgroup`` the tests of a group run on one worker, one after another: those of a server share
the server, those of ``users`` the users of the machine and its sysctls, and those of ``machine`` what else exists once:
Docker's devices and the lock directory. All other tests go to whichever worker is free.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.tiers import TIER, in_part

NEEDS = {
    "hadoop": "hadoop",
    "hadoop_with_gpus": "hadoop",
    "hadoop_with_users": "hadoop",
    "others": "hadoop",
    "secured": "hadoop",
    "two": "hadoop",
    "pair": "hadoop",
    "zookeeper": "zookeeper",
    "ensemble": "zookeeper",
    "dockerd": "docker",
    "driven_daemon": "docker",
    "newer": "docker",
    "podman": "docker",
    "identities": "root",
    "protected_sysctls": "root",
}
"""Fixture -> mark of the tests that ask for it."""

MARKS = ("hadoop", "zookeeper", "docker", "root")

APPLICATIONS = re.compile(
    r"/tests/(end_to_end/.*|cluster/local/test_(am_engine|engine|killed_masters|killed_ranks|start_conditions)\.py"
    r"|documented/test_pages\.py|examples/test_(digits|recipes)\.py|task/test_(mpi|rendezvous|task)\.py"
    r"|tools/test_(commands|shell|exec|main|cache)\.py)$"
)
"""Files whose tests run applications on the embedded engine, or real tasks, or commands on applications: half of the
time of tests that need no server."""

GROUPS = ("hadoop", "yarn", "users", "machine", "hdfs", "zookeeper", "")
"""The longest first; tests of the last run anywhere."""

OF_YARN, OF_HDFS = re.compile(r"/cluster/yarn(/faults)?$"), re.compile(r"/tests/(attacks/storage|hadoop|storage)(/|$)")
"""Directories of tests that have a cluster for themselves in a run of several workers."""

_checked = False
_granted: frozenset[str] = frozenset()


def mark(items: Iterable[pytest.Item]) -> None:
    """Give each test the marks of its needs."""
    for item in items:
        for need in sorted({NEEDS[name] for name in _fixtures(item) if name in NEEDS}):
            item.add_marker(need)
        if APPLICATIONS.search(str(item.path)):
            item.add_marker("applications")


def mark_groups(items: Iterable[pytest.Item]) -> None:
    """Have pytest-xdist run the tests of a group on one worker."""
    for item in items:
        if group := group_of(item):
            item.add_marker(pytest.mark.xdist_group(group))


def left_out(items: Iterable[pytest.Item], *, by_group: bool, tier: str = TIER) -> set[pytest.Item]:
    """Return the cases that this tier leaves out: of tests marked ``sampled(n)`` all but every n-th.

    Where n and the numbers of values of the parameters have no common divisor, each value stays in some cases.
    Those of the tier's part stay, too. The faults tier leaves none out, and a part of it all that are not its own.

    Args:
        items: the tests of the session.
        by_group: this process is a worker of xdist, as of ``make test``: there tests marked ``slow`` are left out, too.
        tier: see `in_part`.
    """
    kind, *part = tier.split()
    if kind == "full":
        return {item for item in items if part and not in_part(item.nodeid, tier)}
    found = set()
    seen: Counter[str] = Counter()
    for item in items:
        if by_group and item.get_closest_marker("slow"):
            found.add(item)
        if mark := item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % mark.args[0]:
                found.add(item)
            seen[test] += 1
    return {item for item in found if not in_part(item.nodeid, tier)}


def of(item: pytest.Item) -> list[str]:
    """The needs that a test has, by its marks."""
    return [need for need in MARKS if item.get_closest_marker(need)]


def group_of(item: pytest.Item) -> str:
    """The group of a test; empty: it runs anywhere."""
    needs = of(item)
    if "hadoop" in needs:
        # Each of the three has a cluster: one after another they would take longer than all others together.
        place = "/".join(item.path.parts[:-1])
        if OF_YARN.search(place):
            return "yarn"
        return "hdfs" if OF_HDFS.search(place) else "hadoop"
    if "docker" in needs:
        return "machine"
    if "root" in needs:
        return "users"
    return "zookeeper" if "zookeeper" in needs else ""


def order(item: pytest.Item) -> tuple[int, bool]:
    """Sort key: the longest groups first, so that no worker is left with one.

    Of those with a Hadoop the tests of the shared cluster come first, and those with clusters of a module's own last.
    """
    own = {"hadoop_with_gpus", "hadoop_with_users", "secured", "two"} & set(_fixtures(item))
    return GROUPS.index(group_of(item)), bool(own)


class Servers:
    """Counts the tests that still need a server, so that it can end with the last of them.

    Args:
        items: the tests of the session, marked.
        by_group: this process runs whole groups, but not all of them (a worker of xdist).
    """

    def __init__(self, items: Iterable[pytest.Item], *, by_group: bool) -> None:
        self._by_group = by_group
        self._left = Counter(key for item in items for key in self._keys(item))
        self._started: list[tuple[pytest.FixtureDef[object], pytest.FixtureRequest]] = []

    def started(self, definition: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> None:
        """Remember the fixture if it brings a server up."""
        if definition.argname in NEEDS:
            self._started.append((definition, request))

    def end_after(self, item: pytest.Item) -> None:
        """Count a test as done, and end the servers that no test needs any more in this process, or in this group."""
        keys = self._keys(item)
        self._left.subtract(keys)
        unneeded = {need for group, need in keys if not self._left[group, need]}
        for definition, request in [one for one in self._started if NEEDS[one[0].argname] in unneeded]:
            self._started.remove((definition, request))
            definition.finish(request)  # type: ignore[arg-type]

    def _keys(self, item: pytest.Item) -> list[tuple[str, str]]:
        group = group_of(item) if self._by_group else ""
        return [(group, need) for need in of(item)]


def grant(item: pytest.Item) -> None:
    """Let only servers that ``item`` is marked for be started from now on."""
    global _checked, _granted
    _checked, _granted = True, frozenset(of(item))


def check(need: str) -> None:
    """Refuse to start a server for a test that does not say so: it would run where there is none."""
    if _checked and need not in _granted:
        raise RuntimeError(f"this test starts a server of {need}: write @pytest.mark.{need} at it")


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])
