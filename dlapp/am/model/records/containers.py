"""Records of containers: granted, bound to an index, running, ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dlapp.am.model.records.record import JournalRecord
from dlapp.am.model.records.recovered import RecoveredContainer
from dlapp.cluster.engine import ContainerEnd, Grant
from dlapp.values.ids import ContainerId
from dlapp.values.messages import TaskResult
from dlapp.values.spec import Resources
from dlapp.values.usage import Receipt

if TYPE_CHECKING:
    from dlapp.am.model.records.recovered import RecoveredState

MAX_GONE_CONTAINERS = 10_000_000
"""Maximum number of containers in all ranges: no application had more."""


class GrantRecord(JournalRecord):
    """Grant of a container by the engine."""

    kind = "grant"

    container: ContainerId
    request_id: int
    node: str
    log_url: str

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Add the container, unless it is known."""
        grant = Grant(
            container_id=self.container,
            request_id=self.request_id,
            node=self.node,
            resources=Resources(),
            log_url=self.log_url,
        )
        former.containers.setdefault(self.container, RecoveredContainer(grant, at_ms))


class AssignRecord(JournalRecord):
    """Assignment of an index to a container; recorded before its payload starts.

    Args:
        tries: number of the index's starts.
        spent: cost of the index's containers before this one; None: there are none, or it is not known.
    """

    kind = "assign"

    container: ContainerId
    index: int
    host: str
    tries: int
    generation: int = 0
    spent: Receipt | None = None

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Bind the index."""
        container, index = former.containers[self.container], self.index
        container.index, container.try_number = index, self.tries
        container.host, container.generation = self.host, self.generation
        former.bound[index] = former.last[index] = container.grant.container_id
        former.tries[index] = self.tries
        if self.spent is not None:
            former.spent[index] = self.spent
        if index in former.waits:
            former.waits[index].good_since_ms = at_ms


class RunRecord(JournalRecord):
    """Begin of a container's payload."""

    kind = "run"

    container: ContainerId
    generation: int = 0

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Record that the payload has run."""
        container = former.containers[self.container]
        container.ran, container.generation = True, self.generation


class ResultRecord(JournalRecord):
    """Result of a container, as its task reported it."""

    kind = "result"

    container: ContainerId
    result: TaskResult
    generation: int = 0

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Record the result."""
        container = former.containers[self.container]
        container.result, container.finished_ms = self.result, at_ms
        container.generation = self.generation
        container.ran = container.ran or (self.result.exit_code, self.result.signal) != (None, None)

    @staticmethod
    def has_output(data: Mapping[str, Any]) -> bool:
        """Return whether a record in its JSON form has stored files, or some that could not be stored.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: it is malformed.
        """
        result = data["result"]
        files = [int(one.get("files") or 0) for one in result.get("outputs") or ()]
        return sum(files) > 0 or bool(result.get("unstored"))


class EndRecord(JournalRecord):
    """End of a container, as the engine reported it."""

    kind = "end"

    container: ContainerId
    status: int
    diagnostics: str
    node_fault: bool

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Record the end."""
        container = former.containers[self.container]
        container.end = ContainerEnd(
            container_id=container.grant.container_id,
            exit_status=self.status,
            diagnostics=self.diagnostics,
            node_fault=self.node_fault,
        )
        if container.finished_ms is None:
            container.finished_ms = at_ms


class GoneRecord(JournalRecord):
    """Containers that have ended and whose records were dropped (`dlapp.am.model.journal_compaction`).

    Args:
        containers: by the prefix of their ids: ranges of their numbers, each with its first and last.
    """

    kind = "gone"

    containers: Mapping[str, tuple[tuple[int, ...], ...]]

    @classmethod
    def of(cls, numbers: Mapping[str, Iterable[int]]) -> GoneRecord:
        """Return the record of containers, by the prefix of their ids."""
        ranges = {prefix: consecutive_ranges(sorted(found)) for prefix, found in numbers.items()}
        return cls({prefix: tuple(map(tuple, found)) for prefix, found in ranges.items()})

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Add the containers to those that are gone."""
        self.check_number(len(former.gone))
        former.gone.update(ContainerId.from_text(f"{prefix}_{number:06d}") for prefix, number in self.numbers())

    def check_number(self, known: int) -> None:
        """Reject a record that would exceed the maximum number of an application's containers, of which ``known`` are
        known without it.

        Raises:
            ValueError: it is rejected, or malformed.
        """
        for pairs in self.containers.values():
            for first, last in pairs:
                if not 0 <= first <= last < 1 << 40:
                    raise ValueError(f"{first} to {last} are not the numbers of containers")
                if (known := known + last - first + 1) > MAX_GONE_CONTAINERS:
                    raise ValueError(f"more than {MAX_GONE_CONTAINERS} containers")

    def numbers(self) -> Iterator[tuple[str, int]]:
        """Yield the prefix and the number of each container; after `check_number`."""
        for prefix, pairs in self.containers.items():
            for first, last in pairs:
                for number in range(first, last + 1):
                    yield prefix, number


def consecutive_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return the first and the last number of each range of consecutive ones in ascending numbers."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found
