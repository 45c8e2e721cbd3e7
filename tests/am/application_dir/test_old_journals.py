"""Old journals are read: those of earlier versions give the same state as by the version that wrote them.

``old_journals/journals.jsonl`` has journals with records of all kinds, between empty lines: of versions before 1.0 and
without what those had not, of a machine that was restarted, with lines that are passed over. ``recovered.jsonl`` has
for each of them, in one line, what the version before the classes of `dlapp.am.model.records` recovered, without empty
values, and the lines that its compaction kept (at most one run of each index).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlapp.am.model import journal
from dlapp.am.model.journal_compaction import JournalCompaction
from dlapp.am.model.records.recovered import RecoveredState, RecoveredTrial
from dlapp.am.model.trials import TrialRecord, recovered_parts, restore_end
from dlapp.value import Record, fields
from dlapp.values.serialization import to_json

DIRECTORY = Path(__file__).parent / "old_journals"
JOURNALS = [one.splitlines() for one in (DIRECTORY / "journals.jsonl").read_text(encoding="utf-8").split("\n\n")]
RECOVERED = [json.loads(line) for line in (DIRECTORY / "recovered.jsonl").read_text(encoding="utf-8").splitlines()]
KINDS = "begin start change soft ending settled finish grant assign run result end gone free faults give_up wait gate"
KINDS_OF_TRIALS = "trial trial_end trial_back trial_committed taken rung"


def without_empty(value: Any) -> Any:
    """Return a JSON form without empty values: fields that were added since have those."""
    if isinstance(value, dict):
        found = {key: without_empty(one) for key, one in value.items()}
        return {key: one for key, one in found.items() if one not in (None, False, 0, "", [], {})}
    return [without_empty(one) for one in value] if isinstance(value, list) else value


def attributes(record: Record) -> dict[str, Any]:
    return {name: to_json(getattr(record, name)) for name in fields(type(record))}


def trial_as_json(number: int, known: RecoveredTrial) -> dict[str, Any]:
    """Return a trial, with its end as the next attempt has it: how it ended, and its fields."""
    end = None
    if known.end is not None:
        trial = TrialRecord(number)
        trial.index = known.index
        how = restore_end(trial, known.end, known.ended_ms)
        end = [how.value, attributes(trial)]
    known.end, known.ended_ms = None, 0
    return {**attributes(known), "end": end}


def as_json(former: RecoveredState) -> dict[str, Any]:
    """Return recovered state as JSON, in the form of ``recovered.jsonl``."""
    found: dict[str, Any] = {"parts": recovered_parts(former.trials), **vars(former)}
    found["containers"] = {str(one): to_json(vars(known)) for one, known in former.containers.items()}
    found["waits"] = {index: attributes(one) for index, one in former.waits.items()}
    found["gates"] = {name: tuple(one) for name, one in former.gates.items()}
    found["gone"] = sorted(map(str, former.gone))
    found["trials"] = {number: trial_as_json(number, one) for number, one in former.trials.items()}
    if former.start is not None:
        found["start"] = (tuple(map(str, former.start[0])), *former.start[1:])
    recovered: dict[str, Any] = without_empty(json.loads(json.dumps(to_json(found))))
    return recovered


@pytest.mark.parametrize("number", range(len(JOURNALS)))
def test_an_old_journal_is_read_to_the_same_state(number: int) -> None:
    """Each of the 29 journals is replayed, and compared with what the version that wrote it recovered."""
    expected = without_empty(RECOVERED[number])
    del expected["needed_lines"]
    assert as_json(journal.replay(journal.records(JOURNALS[number]))) == expected


@pytest.mark.parametrize("number", range(len(JOURNALS)))
def test_of_an_old_journal_the_same_lines_are_needed(number: int) -> None:
    """Each journal is compacted to one earlier run of each index."""
    lines = JOURNALS[number]
    compaction = JournalCompaction(most_runs=1)
    compaction.process(lines)
    needed = [lines[one] if isinstance(one, int) else one for one in RECOVERED[number]["needed_lines"]]
    assert compaction.needed_lines(lines) == needed


@pytest.mark.parametrize("number", range(len(JOURNALS)))
def test_a_record_of_an_old_journal_is_written_as_it_was_read(number: int) -> None:
    """Each record that is read is written again, and read: fields with their default value may be left out."""
    for record in journal.records(JOURNALS[number]):
        cls = journal.class_of(record.get("kind", ""))
        try:
            value = cls.read(record) if cls is not None else None
        except (LookupError, ValueError):
            continue
        if value is not None:
            again = json.loads(journal.line(value.as_json(record["t"])))
            assert type(value).read(again) == value
            assert without_empty(again) == without_empty({key: one for key, one in record.items() if key != "mood"})


def test_the_old_journals_have_records_of_all_kinds() -> None:
    found = {record.get("kind") for lines in JOURNALS for record in journal.records(lines)}
    kinds = {*KINDS.split(), *KINDS_OF_TRIALS.split()}
    assert kinds <= found
    assert {kind for kind in found if kind is not None and journal.class_of(kind) is not None} == kinds
