"""Strategies that change valid samples: most parsers refuse random bytes at the first one.

Bytes are flipped, cut, inserted, doubled, repeated, replaced by lengths and numbers that do not fit, and spliced with
another sample. JSON is changed as a value, too: a part of it becomes something of another type, without bounds or
nested deeply, goes away, or stands there twice.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from hypothesis import strategies as st

DEPTH = 100_000
"""How deeply nested what is nested deeply is."""

_PIECES = (
    b"\0",
    b"\xff",
    b"\x80",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x88\xff\xff\xff\xff",
    b"-1",
    b"00",
    b"99999999999999999999",
    b"9" * 5000,
    b"1e999",
    b"NaN",
    b"-Infinity",
    b"null",
    b"../",
    b"/",
    b"..",
    b"\r\n",
    b"\n\n",
    b"\t",
    b"\x1b[2J\x1b]0;x\x07",
    b"\xe2\x80\xae",
    b"\xed\xa0\x80",
    b"\\ud800",
    b'"',
    b"'",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b";",
    b"=",
    b"<",
    b"&x;",
    b"%00",
    b"%2e%2e%2f",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n",
    b"fffffffffffffff\r\n",
    b"[" * 5000,
    b'{"a":' * 5000,
    b"*&a" * 100,
)

Change = tuple[int, int, int, bytes]


def _changed(samples: Sequence[bytes], which: int, changes: Sequence[Change]) -> bytes:
    data = samples[which % len(samples)]
    for how, where, size, piece in changes:
        offset = where % (len(data) + 1)
        end = min(len(data), offset + 1 + size % 64)
        match how:
            case 0:
                data = (
                    data[:offset] + bytes([data[offset] ^ (1 << size % 8)]) + data[offset + 1 :]
                    if offset < len(data)
                    else data
                )
            case 1:
                data = data[:offset] + bytes([size & 0xFF]) + data[offset + 1 :]
            case 2:
                data = data[:offset]
            case 3:
                data = data[:offset] + data[end:]
            case 4:
                data = data[:offset] + piece + data[offset:]
            case 5:
                data = data[:offset] + piece + data[offset + len(piece) :]
            case 6:
                data = data[:end] + data[offset:]
            case 7:
                # Long ones are rare: most parsers take as long as their input is.
                data = data[:offset] + data[offset:end] * (1 + (size if size % 8 == 0 else size % 32)) + data[end:]
            case 8:
                other = samples[size % len(samples)]
                data = data[:offset] + other[where % (len(other) + 1) :]
    return data


_SEEDS = st.integers(0, (1 << 64) - 1)
"""A case is one number: to draw each of its parts from Hypothesis takes longer than most parsers do."""


def _change(random: Random) -> Change:
    piece = random.choice(_PIECES) if random.random() < 0.5 else random.randbytes(random.randrange(9))
    return random.randrange(9), random.randrange(1 << 16), random.randrange(4096), piece


def mutated(samples: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return a strategy for samples with one to four changes of their bytes."""
    known = tuple(samples)

    def case(seed: int) -> bytes:
        random = Random(seed)
        return _changed(known, random.randrange(len(known)), [_change(random) for _ in range(random.randint(1, 4))])

    return _SEEDS.map(case)


# ---- JSON ----

_DEEP = "\ue000"
"""Stands for a value that is nested deeply until the text is made: json.dumps could not write one."""

_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1 << 63,
    1 << 64,
    10**400,
    1.5,
    -0.0,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    "",
    "x",
    "9" * 5000,
    "-1",
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "a\0b",
    "\x1b[2J\x1b]0;x\x07",
    "\u202eabc",
    "\ud800",
    "x" * 100_000,
    "application_1_0001",
    "container_1_0001_01_000001",
    "http://[::1",
    "\u0661\u0662",
    [],
    {},
    [[]],
    [None],
    [0] * 1000,
    {"a": None},
    {"": {}},
    {str(number): number for number in range(1000)},
    _DEEP,
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return each (container, key) of a JSON value."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        one = pending.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        for key in keys:
            found.append((one, key))
            pending.append(one[key])
    return found


def _json_changed(samples: Sequence[Any], which: int, changes: Sequence[tuple[int, int, Any]]) -> bytes:
    whole = [copy.deepcopy(samples[which])]
    for how, where, value in changes:
        places = _places(whole)
        if not places:
            break
        inside, key = places[where % len(places)]
        match how:
            case 0 | 1 | 2:
                inside[key] = copy.deepcopy(value)
            case 3:
                del inside[key]
            case 4 if isinstance(inside, list):
                inside.insert(key, copy.deepcopy(inside[key]))
            case 4:
                inside["more"] = copy.deepcopy(inside[key])
            case 5:
                other, name = places[(where * 7 + 1) % len(places)]
                inside[key] = copy.deepcopy(other[name])
            case 6:
                inside[key] = [inside[key]]
    return _text_of(whole[0] if whole else None)


def _text_of(value: Any) -> bytes:
    text = json.dumps(value)
    if f'"{json.dumps(_DEEP)[1:-1]}"' in text:
        text = text.replace(json.dumps(_DEEP), "[" * DEPTH + "]" * DEPTH, 1)
    return text.encode()


def hostile_values(samples: Sequence[Any], most: int) -> Iterator[bytes]:
    """Yield JSON texts in which one part of a sample is another value; of all such texts an even choice of ``most``."""
    every = [
        (sample, value, place) for sample in samples for place in range(len(_places([sample]))) for value in _VALUES
    ]
    step = max(1, len(every) // most)
    while step > 1 and step % len(_VALUES) == 0:
        step -= 1
    for sample, value, place in every[::step]:
        whole = [copy.deepcopy(sample)]
        inside, key = _places(whole)[place]
        inside[key] = value
        yield _text_of(whole[0])


def mutated_json(samples: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """Return a strategy for JSON texts of changed values, and now and then for changed bytes of them."""
    known = tuple(samples)
    texts = [json.dumps(sample).encode() for sample in samples]

    def case(seed: int) -> bytes:
        random = Random(seed)
        which = random.randrange(len(known))
        if random.random() < 0.25:
            return _changed(texts, which, [_change(random) for _ in range(random.randint(1, 4))])
        changes = [
            (random.randrange(7), random.randrange(1 << 16), random.choice(_VALUES))
            for _ in range(random.randint(1, 3))
        ]
        return _json_changed(known, which, changes)

    return _SEEDS.map(case)
