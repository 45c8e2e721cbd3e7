"""Test what a payload, or a bad manifest, can do to checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dlapp.errors import DlappError
from dlapp.storage.checkpoints import snapshot
from dlapp.storage.checkpoints.copies import Checkpoints
from dlapp.storage.checkpoints.manifest import IncompleteCheckpoint, parse_manifest
from dlapp.storage.checkpoints.store import open_store
from dlapp.system.processes.open_files import are_inspectable
from tests.attacks.identities import USERS, Identities

DIRECTORY = {"name": "", "kind": "directory", "mode": 0o755, "mtime_ns": 0}
FILE = {"name": "a", "kind": "file", "mode": 0o644, "mtime_ns": 0, "size_bytes": 1, "digest": "0" * 64}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


@pytest.mark.parametrize("year", [1600, 2300])
def test_a_file_of_a_far_year_does_not_make_all_checkpoints_useless(tmp_path: Path, source: Path, year: int) -> None:
    (source / "weights").write_text("weights")
    at_ns = (year - 1970) * 31_556_952 * 10**9
    os.utime(source / "weights", ns=(at_ns, at_ns))
    with open_store(f"file://{tmp_path}/place") as place:
        one = Checkpoints(place, 3, lambda _: None)
        one.store(str(source))
        assert one.restore(f"{tmp_path}/back") == 1
    assert (tmp_path / "back" / "weights").read_text() == "weights"


@pytest.mark.parametrize("kind", ["files", "links", "directories"])
def test_an_endless_directory_is_read_in_part(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(snapshot, "MAX_ENTRIES", 10)
    for number in range(20):
        match kind:
            case "files":
                (source / f"{number}").touch()
            case "links":
                (source / f"{number}").symlink_to("/")
            case _:
                (source / "/".join("d" * (number + 1))).mkdir()
    notes: list[str] = []
    with open_store(f"file://{tmp_path}/place") as place, pytest.raises(DlappError, match="has more than 9 files"):
        Checkpoints(place, 3, notes.append).store(str(source))
    assert not (tmp_path / "place").exists()
    assert notes == []


def test_skipped_files_are_noted_once_with_a_limit(tmp_path: Path, source: Path) -> None:
    (source / "weights").write_text("weights")
    notes: list[str] = []
    with open_store(f"file://{tmp_path}/place") as place:
        one = Checkpoints(place, 3, notes.append)
        for first in (0, 0, 150):
            for number in range(first, first + 150):
                (source / f"{number}").unlink(missing_ok=True)
                (source / f"{number}").symlink_to("/etc/passwd")
            one.store(str(source))
    assert len(notes) == len(set(notes)) == 101


@pytest.mark.parametrize("name", ["/a", "//a", "../a", "a/../a", "/", "a/", ".", "..", "a/b", "/proc/self/fd/9"])
def test_no_entry_leads_out_of_its_directory_or_names_a_file_twice(name: str) -> None:
    entries = [DIRECTORY, FILE, FILE | {"name": name}]
    with pytest.raises(IncompleteCheckpoint):
        parse_manifest(json.dumps({"version": 1, "number": 1, "entries": entries}).encode(), 1)


def test_the_open_files_of_another_users_program_are_not_taken_for_none(identities: Identities) -> None:
    assert are_inspectable([os.getpid()])
    assert not identities.call(USERS[0], are_inspectable, [os.getpid()])
