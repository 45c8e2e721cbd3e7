"""Xid errors in the directory of a machine's ledger: counted by each user, shown to all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dlapp.gpuid.stores.xid_files import XidCount, add_xids, read_xids
from dlapp.system import clock


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "locks")


def counts(directory: str) -> dict[str, dict[int, int]]:
    found = read_xids(directory)
    return {device: {code: one.times for code, one in codes.items()} for device, codes in found.items()}


def test_errors_add_up_by_device_and_code(directory: str) -> None:
    add_xids(directory, {"GPU-0": {31: 2}, "GPU-1": {63: 1}})
    add_xids(directory, {"GPU-0": {31: 1, 13: 1}})
    assert counts(directory) == {"GPU-0": {31: 3, 13: 1}, "GPU-1": {63: 1}}
    assert sorted(name.partition("-")[0] for name in os.listdir(directory)) == ["xids", "xids"]


def test_the_time_of_the_last_error_of_each_code_is_kept(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for now_ms in (1000, 5000, 3000):
        monkeypatch.setattr(clock, "now_ms", lambda now_ms=now_ms: now_ms)
        add_xids(directory, {"GPU-0": {31: 1}})
    assert read_xids(directory) == {"GPU-0": {31: XidCount(3, 5000)}}


def test_without_a_directory_there_are_no_errors(directory: str) -> None:
    assert read_xids(directory) == {}


def test_the_latest_of_very_many_codes_are_kept(directory: str) -> None:
    add_xids(directory, {"GPU-0": dict.fromkeys(range(1, 64), 1)})
    add_xids(directory, {"GPU-0": dict.fromkeys(range(1000, 1010), 1)})
    found = counts(directory)["GPU-0"]
    assert len(found) == 64
    assert set(range(1000, 1010)) <= found.keys()


@pytest.mark.parametrize(
    "xids",
    [
        7,
        [],
        {"31": 7},
        {"31": [1]},
        {"31": [0, 1]},
        {"31": [-1, 1]},
        {"31": [1 << 60, 1]},
        {"31": [True, 1]},
        {"31": [1.5, 1]},
        {"31": [1, -1]},
        {"x": [1, 1]},
        {"99999": [1, 1]},
        {"-1": [1, 1]},
        {"²": [1, 1]},
    ],
)
def test_an_invalid_count_is_not_shown_and_hides_no_other(directory: str, xids: object) -> None:
    add_xids(directory, {"GPU-0": {63: 1}})
    name = "xids-GPU-0-0123456789abcdef"
    Path(directory, name).write_text(json.dumps({"xids": xids, "name": name}))
    assert counts(directory) == {"GPU-0": {63: 1}}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"xids": {"31": [1, 1]}, "name": "another"}'])
def test_a_file_that_is_no_record_is_ignored(directory: str, text: str) -> None:
    add_xids(directory, {"GPU-0": {63: 1}})
    Path(directory, "xids-GPU-0-0123456789abcdef").write_text(text)
    os.mkfifo(Path(directory, "xids-GPU-1-0123456789abcdef"))
    assert counts(directory) == {"GPU-0": {63: 1}}
