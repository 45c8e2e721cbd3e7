"""Compaction of a journal: drop lines that a next attempt no longer needs.

Each run of a container leaves about ten lines, and containers taken away by a cluster are retried without limit. So a
journal would grow without limit, while a next attempt has little memory to read it. But of an index that ran a thousand
times a next attempt needs only the last run, the latest of the others, and its last counts, which are absolute.

`JournalCompaction` processes a journal twice, in order: `process` all lines, then write the `needed_lines`, in parts of
any size. Guarantees:

- replaying the kept lines gives the same state as all lines (`dlapp.am.model.journal.replay`), except for the dropped
  runs; these are listed in a record ``gone``, because their tasks may come back from a disconnected node,
- this holds after each part: a process that dies in between leaves a journal whose first parts lack lines that the
  others still have, and a record of a container without its ``grant`` is ignored,
- a line not needed now is never needed later, whatever is added to the journal.

Most lines never become a value of their class in `dlapp.am.model.records`: of those only the one or two fields that
count here are read, which is several times faster.

Lines that were not processed, lines of an unknown kind, and lines of a container whose ``grant`` was not processed, are
kept.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from dlapp.am.model.instance import MAX_EARLIER_CONTAINERS
from dlapp.am.model.journal import class_of, line
from dlapp.am.model.records.containers import AssignRecord, EndRecord, GoneRecord, GrantRecord, ResultRecord
from dlapp.value import Record

MAX_RUNS = 50_000
"""Number of runs of all indexes together that are kept, and at least two of each: about 50 MB of a journal."""
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors of a line that `replay` ignores, too."""


class _GrantedContainer(Record):
    """Granted container.

    Attributes:
        index: index that it was bound to; None: none yet.
        stored: its task stored files, or left some that it could not store.
        ended: the engine reported its end.
    """

    index: int | None = None
    stored: bool = False
    ended: bool = False


class JournalCompaction:
    """Selection of the lines of a journal that are needed.

    Args:
        most_runs: see `MAX_RUNS`.
    """

    def __init__(self, most_runs: int = MAX_RUNS) -> None:
        self._most_runs = most_runs
        self._runs: dict[str, _GrantedContainer] = {}
        self._last: dict[int, str] = {}
        self._earlier: dict[int, list[str]] = defaultdict(list)
        self._needed: dict[tuple[str, str], str] = {}
        self._gone: dict[str, set[int]] = defaultdict(set)
        self._is_complete = False

    def process(self, lines: Iterable[str]) -> None:
        """Process the next lines of the journal."""
        for text in lines:
            try:
                self._process_record(json.loads(text), text)
            except _MALFORMED:
                continue

    def needed_lines(self, lines: Iterable[str]) -> list[str]:
        """Return the needed ones of processed lines, in order; no line may be processed after that."""
        if not self._is_complete:
            self._is_complete = True
            most = min(MAX_EARLIER_CONTAINERS, max(1, self._most_runs // max(1, len(self._last)) - 1))
            for index in self._earlier:
                self._drop_earlier_runs(index, most)
        kept: list[str] = []
        gone: dict[str, set[int]] = defaultdict(set)
        for text in lines:
            try:
                record = json.loads(text)
                kind = record["kind"]
                if kind == GoneRecord.kind:
                    earlier = GoneRecord.read(record)
                    earlier.check_number(sum(map(len, gone.values())))
                    for prefix, number in earlier.numbers():
                        gone[prefix].add(number)
                    continue
                if (container := record.get("container")) is not None:
                    prefix, number = _split(container)
                    if number in self._gone.get(prefix, ()):
                        if kind == GrantRecord.kind:
                            gone[prefix].add(number)
                        continue
                elif (keys := _keys(record)) and all(self._needed.get(key, text) != text for key in keys):
                    continue
            except _MALFORMED:
                pass
            kept.append(text)
        if gone:
            kept.insert(0, line(GoneRecord.of(gone).as_json(0)))
        return kept

    def _process_record(self, record: dict[str, Any], text: str) -> None:
        if record.get("container") is None:
            for key in _keys(record):
                if not key[0].startswith("first") or key not in self._needed:
                    self._needed[key] = text
        match record["kind"]:
            case GrantRecord.kind:
                self._runs.setdefault(str(record["container"]), _GrantedContainer())
            case AssignRecord.kind:
                container, index = str(record["container"]), int(record["index"])
                self._runs[container].index = index
                before, self._last[index] = self._last.get(index), container
                if before not in (None, container):
                    self._settle(str(before))
            case ResultRecord.kind:
                self._runs[str(record["container"])].stored = ResultRecord.has_output(record)
            case EndRecord.kind:
                self._runs[str(record["container"])].ended = True
                self._settle(str(record["container"]))

    def _settle(self, container: str) -> None:
        """Record that a container has ended, or is no longer the last one of its index."""
        run = self._runs[container]
        if not run.ended:
            return
        if run.index is None:
            self._forget(container)
        elif self._last.get(run.index) != container:
            earlier = self._earlier[run.index]
            if container not in earlier:
                earlier.append(container)
            self._drop_earlier_runs(run.index, MAX_EARLIER_CONTAINERS)

    def _drop_earlier_runs(self, index: int, most: int) -> None:
        """Drop as many earlier runs of an index as `Instance.add_earlier` does."""
        earlier = self._earlier[index]
        while len(earlier) > most:
            container = next((one for one in earlier if not self._runs[one].stored), earlier[0])
            earlier.remove(container)
            self._forget(container)

    def _forget(self, container: str) -> None:
        prefix, number = _split(container)
        self._gone[prefix].add(number)
        del self._runs[container]


def _keys(record: dict[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the keys for which a record may be the latest one; empty: the record itself is needed."""
    cls = class_of(record["kind"])
    return cls.latest_keys(record) if cls is not None else ()


def _split(container: str) -> tuple[str, int]:
    prefix, _, number = container.rpartition("_")
    return prefix, int(number)
