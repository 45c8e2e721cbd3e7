"""Lists of trials: a CSV or JSON-lines file, one trial per row, one parameter per column.

    lr,batch_size               {"lr": 0.1, "batch_size": 32}
    0.1,32                      {"lr": 0.01, "batch_size": 64}
    0.01,64

A value is the text as written: ``0.10`` stays ``0.10``, also in JSON, where ``true`` and ``false`` are also text.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from dlapp.errors import UsageError
from dlapp.sweep.spec import MAX_PARAMETERS, MAX_TRIALS, MAX_VALUE_BYTES, TrialTable
from dlapp.system.text import first_repeated, nearest, shown

MAX_FILE_BYTES = 1 << 20
ENDINGS = (".csv", ".jsonl", ".ndjson")
_MAX_FAULTS = 20
_MAX_SHOWN = 200
"""Characters of a name, and of all names in a message, which each of some 100,000 rows may cause."""


def read_trial_list(data: bytes, path: str) -> TrialTable:
    """Return the rows of a file.

    Args:
        data: its content.
        path: its name, whose extension selects the format; for messages.

    Raises:
        UsageError: it is invalid; one line for each error.
    """
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: has more than {MAX_FILE_BYTES >> 10} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: is not UTF-8") from None
    if not path.endswith(ENDINGS):
        raise UsageError(f"{path}: is neither CSV nor JSON lines by its ending: {', '.join(ENDINGS)}")
    rows = _csv_rows(text) if path.endswith(".csv") else _json_rows(text)
    names: tuple[str, ...] = ()
    found: list[tuple[str, ...]] = []
    faults: list[str] = []
    try:
        for line, row in rows:
            if isinstance(row, str):
                faults.append(f"{path}:{line}: {row}")
            elif not names:
                names = row
            else:
                faults += [f"{path}:{line}: {problem}" for problem in _value_problems(names, row)]
                found.append(row)
    except ValueError as error:
        faults.append(f"{path}:{error}")
    if not faults and not found:
        faults.append(f"{path}: has no trials")
    if len(found) > MAX_TRIALS:
        faults.append(f"{path}: has {len(found)} trials, the maximum is {MAX_TRIALS}")
    if faults:
        more = len(faults) - _MAX_FAULTS
        raise UsageError("\n".join(faults[:_MAX_FAULTS] + [f"{path}: {more} more errors"] * (more > 0)))
    return TrialTable(names, tuple(found))


def _value_problems(names: tuple[str, ...], row: tuple[str, ...]) -> Iterator[str]:
    for name, value in zip(names, row, strict=True):
        if "\0" in value:
            yield f"{name} has a NUL in it"
        elif len(value.encode(errors="surrogateescape")) > MAX_VALUE_BYTES:
            yield f"{name} has more than {MAX_VALUE_BYTES} bytes"


def _csv_rows(text: str) -> Iterator[tuple[int, tuple[str, ...] | str]]:
    """Yield each row's line with its values, the names first; or with its problem."""
    import csv  # only for a sweep

    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    names: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"{line}: is not CSV: {error}") from None
        if row is None:
            return
        values = [value.strip() for value in row]
        if not any(values) and len(values) <= 1:
            continue
        if names is None:
            names = values
            if (twice := first_repeated(names)) is not None:
                raise ValueError(f"{line}: the header has {shown(twice)} twice")
            _check_names(line, names)
        elif len(values) != len(names):
            yield line, f"has {len(values)} values, the header has {len(names)}: {_joined(names)}"
            continue
        yield line, tuple(values)


def _json_rows(text: str) -> Iterator[tuple[int, tuple[str, ...] | str]]:
    names: tuple[str, ...] = ()
    for line, one in enumerate(text.split("\n"), start=1):
        if not one.strip():
            continue
        try:
            row = _json_object(one)
        except (ValueError, RecursionError) as error:
            problem = error.args[0] if type(error) is ValueError else "is not a JSON object"
            yield line, problem
            continue
        if not names:
            names = tuple(row)
            _check_names(line, names)
            yield line, names
        if lacks := [name for name in names if name not in row]:
            yield line, f"lacks {_joined(lacks)}, which the first trial has"
        elif more := [name for name in row if name not in names]:
            yield line, f"has {shown(more[0])}, which the first trial has not, {nearest(more[0], names)}"
        else:
            yield line, tuple(row[name] for name in names)


def _json_object(line: str) -> dict[str, str]:
    found: Any = json.loads(
        line,
        parse_int=str,
        parse_float=str,
        parse_constant=_refuse_constant,
        object_pairs_hook=_unique_keys,
    )
    if not isinstance(found, dict):
        raise ValueError("is not a JSON object")
    if not found:
        raise ValueError("has no parameters")
    row = {}
    for name, value in found.items():
        if isinstance(value, bool):
            value = "true" if value else "false"
        if not isinstance(value, str):
            raise ValueError(f"{shown(name)} is neither text nor a number nor true or false")
        row[name] = value
    return row


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"has {shown(first_repeated([name for name, _ in pairs]) or '')} twice")
    return row


def _check_names(line: int, names: Sequence[str]) -> None:
    """Refuse values that are invalid in every sweep before comparing them with each row."""
    if len(names) > MAX_PARAMETERS:
        raise ValueError(f"{line}: has {len(names)} parameters, the maximum is {MAX_PARAMETERS}")
    if (longest := max(names, key=len)) and len(longest) > _MAX_SHOWN:
        raise ValueError(f"{line}: has the parameter {shown(longest)}, whose name is longer than {_MAX_SHOWN}")


def _joined(names: Sequence[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
