"""Test lists of trials: CSV and JSON lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.errors import UsageError
from dlapp.sweep.spec import TrialTable
from dlapp.sweep.trial_list import read_trial_list


def problems(data: bytes, path: str = "t.csv") -> list[str]:
    with pytest.raises(UsageError) as refused:
        read_trial_list(data, path)
    return str(refused.value).split("\n")


def test_csv_has_a_header_and_a_row_for_each_trial() -> None:
    data = b'\xef\xbb\xbflr, layers\r\n0.10,"64,64"\r\n\r\n1e-3, 32 \r\n'
    assert read_trial_list(data, "t.csv") == TrialTable(("lr", "layers"), (("0.10", "64,64"), ("1e-3", "32")))


def test_json_lines_keep_numbers_as_they_are_written() -> None:
    data = b'{"lr": 0.10, "deep": true, "n": 7, "name": "a"}\n\n{"name": "b", "n": -1e3, "lr": 1, "deep": false}\n'
    rows = (("0.10", "true", "7", "a"), ("1", "false", "-1e3", "b"))
    assert read_trial_list(data, "t.jsonl") == TrialTable(("lr", "deep", "n", "name"), rows)


def test_all_rows_with_faults_are_named_with_their_lines() -> None:
    assert problems(b"lr,batch\n0.1,32\n0.2\n0.3,64,7\n") == [
        "t.csv:3: has 1 values, the header has 2: lr, batch",
        "t.csv:4: has 3 values, the header has 2: lr, batch",
    ]
    data = b'{"lr": 1, "batch": 2}\n{"lr": 1}\n{"lr": 1, "batch": 2, "bacth": 3}\n{"lr": null, "batch": 1}\n[1]\nx\n'
    assert problems(data, "t.jsonl") == [
        "t.jsonl:2: lacks batch, which the first trial has",
        "t.jsonl:3: has 'bacth', which the first trial has not, the nearest is batch",
        "t.jsonl:4: 'lr' is neither text nor a number nor true or false",
        "t.jsonl:5: is not a JSON object",
        "t.jsonl:6: is not a JSON object",
    ]


@pytest.mark.parametrize(
    ("data", "path", "problem"),
    [
        (b"", "t.csv", "t.csv: has no trials"),
        (b"lr,batch\n", "t.csv", "t.csv: has no trials"),
        (b"lr,lr\n1,2\n", "t.csv", "t.csv:1: the header has 'lr' twice"),
        (b'lr\n"1\n', "t.csv", "t.csv:2: is not CSV: unexpected end of data"),
        (b"lr\n1\n\xff\n", "t.csv", "t.csv:3: is not UTF-8"),
        (b"lr\n1\n", "t.tsv", "t.tsv: is neither CSV nor JSON lines by its ending: .csv, .jsonl, .ndjson"),
        (b"lr\na\0b\n", "t.csv", "t.csv:2: lr has a NUL in it"),
        (b"lr\n" + b"x" * 5000 + b"\n", "t.csv", "t.csv:2: lr has more than 4096 bytes"),
        (b"lr\n" + b"1\n" * 10_001, "t.csv", "t.csv: has 10001 trials, the maximum is 10000"),
        (b"x" * (1 << 20) + b"x", "t.csv", "t.csv: has more than 1024 KiB"),
        (
            b"a" * 201 + b"\n1,2\n" * 3,
            "t.csv",
            f"t.csv:1: has the parameter '{'a' * 60}'..., whose name is longer than 200",
        ),
        (f"{','.join(map(str, range(101)))}\n1\n".encode(), "t.csv", "t.csv:1: has 101 parameters, the maximum is 100"),
        (b'{"lr": NaN}', "t.jsonl", "t.jsonl:1: NaN is not a number of JSON"),
        (b'{"lr": 1, "lr": 2}', "t.jsonl", "t.jsonl:1: has 'lr' twice"),
        (b"{}", "t.jsonl", "t.jsonl:1: has no parameters"),
        (b"[" * 100_000, "t.jsonl", "t.jsonl:1: is not a JSON object"),
    ],
)
def test_an_invalid_trial_list_is_refused(data: bytes, path: str, problem: str) -> None:
    assert problems(data, path) == [problem]


def test_not_more_than_some_faults_are_named() -> None:
    found = problems(b"a,b\n" + b"1\n" * 50)
    assert len(found) == 21
    assert found[-1] == "t.csv: 30 more errors"


@given(st.binary(max_size=200), st.sampled_from(["t.csv", "t.jsonl"]))
def test_any_bytes_are_a_list_or_refused(data: bytes, path: str) -> None:
    try:
        table = read_trial_list(data, path)
    except UsageError:
        return
    assert table.rows


WIDE = [f"n{number}" for number in range(60_000)]


@pytest.mark.parametrize(
    ("data", "path"),
    [
        pytest.param(",".join(WIDE) + "\n1" * 100_000, "t.csv", id="a wide header"),
        pytest.param(",".join([*WIDE, "n59999"]), "t.csv", id="a name twice at the end of a wide header"),
        pytest.param("h" * 500_000 + "\n1,2" * 100_000, "t.csv", id="a long name"),
        pytest.param(
            f"{{{', '.join(f'{chr(34)}{item}{chr(34)}: 1' for item in WIDE)}}}", "t.jsonl", id="a wide object"
        ),
    ],
)
def test_a_list_of_any_shape_is_refused_with_work_that_grows_as_its_size(data: str, path: str) -> None:
    """The messages are short: a header that was repeated for each row took 100 GB."""
    assert len(data) <= 1 << 20
    assert sum(map(len, problems(data.encode(), path))) < 1000
