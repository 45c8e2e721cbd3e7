"""The journal: the state that a next attempt needs, as lines of JSON, and its replay.

Every record has ``kind`` and ``t`` (ms since 1970), and the fields of its class in `dlapp.am.model.records`, which
writes and replays it. A reader ignores unknown kinds and fields, and lines that are not a JSON object: a crash may
truncate one. Counts are absolute, so reading a record twice does no harm.

    of the application     begin, start, change, soft, ending, settled, finish
    of containers          grant, assign, run, result, end, gone
    of indexes and gangs   free, faults, give_up, wait, gate
    of trials              trial, trial_end, trial_back, trial_committed, taken, rung

Only ``start``, ``gate``, ``soft`` and ``ending`` must be durable before the AM acts on them, and ``assign`` if the
engine may not know a live container; of a sweep that uses Optuna also ``trial``. The others add to what cannot be lost:
the engine's list of live containers, and the tasks, which report what they run.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dlapp.am.model.records import application, containers, indexes
from dlapp.am.model.records.recovered import RecoveredState
from dlapp.values.messages import Fault

if TYPE_CHECKING:
    from dlapp.am.model.records.record import JournalRecord

_RECORDS = (
    application.BeginRecord,
    application.StartRecord,
    application.ChangeRecord,
    application.SoftRecord,
    application.EndingRecord,
    application.SettledRecord,
    application.FinishRecord,
    containers.GrantRecord,
    containers.AssignRecord,
    containers.RunRecord,
    containers.ResultRecord,
    containers.EndRecord,
    containers.GoneRecord,
    indexes.FreeRecord,
    indexes.FaultsRecord,
    indexes.GiveUpRecord,
    indexes.WaitRecord,
    indexes.GateRecord,
)
_KINDS_OF_TRIALS = frozenset({"trial", "trial_end", "trial_back", "trial_committed", "taken", "rung"})


@functools.lru_cache(maxsize=64)
def class_of(kind: str) -> type[JournalRecord] | None:
    """Return the class of the records of a kind; None: no version of this program has written it."""
    classes: tuple[type[JournalRecord], ...] = _RECORDS
    if kind in _KINDS_OF_TRIALS:
        from dlapp.am.model.records.trials import TRIAL_RECORDS  # few applications need it

        classes = TRIAL_RECORDS
    return next((one for one in classes if one.kind == kind), None)


def line(record: dict[str, Any]) -> str:
    """Return the line of a record, without its newline."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def records(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of lines; skip what is not a JSON object."""
    for text in lines:
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def replay(found: Iterable[dict[str, Any]]) -> RecoveredState:
    """Replay all records of all earlier attempts, in order, and return the recovered state.

    A record without the fields of its kind is ignored: the journal is only a supplement.
    """
    former = RecoveredState()
    for record in found:
        try:
            if (cls := class_of(record["kind"])) is not None:
                cls.read(record).replay(former, int(record["t"]))
        except (LookupError, TypeError, ValueError, OverflowError):
            continue
    return former


def done(former: RecoveredState) -> list[int]:
    """Return the indexes that are known to have succeeded."""
    return sorted(
        index
        for index, container_id in former.bound.items()
        if (result := former.containers[container_id].result) and result.fault is Fault.NONE
    )
