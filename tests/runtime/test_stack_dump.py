"""Stacks by py-spy: real processes, and programs in its place that fail or hang."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.runtime import stack_dump
from dlapp.runtime.stack_dump import StackDump


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine take as long as it does, where a test does not set the limit itself."""
    monkeypatch.setattr(stack_dump, "_LIMIT_S", 120.0)


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A Python process; its number."""
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


class Dumped:
    """Result of a dump: its text and its notes."""

    def __init__(self, tmp_path: Path, pids: list[int], *, path: Path | None = None) -> None:
        self.notes: list[str] = []
        file = path or tmp_path / "stderr"
        if path is None:
            file.write_bytes(b"before\n")
        self.dump = StackDump(lambda: pids, str(file), self.notes.append)
        while not self.dump.is_done():
            time.sleep(0.002)
        self.text = file.read_text() if file.is_file() else ""


def program_at(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def in_place_of_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    program = tmp_path / "py-spy"
    program_at(program, text)
    monkeypatch.setattr(stack_dump, "find_py_spy", lambda: str(program))


def test_python_processes_are_dumped_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sleeper: int
) -> None:
    in_place_of_py_spy(monkeypatch, tmp_path, 'echo "begin $3"; sleep 0.05; echo "end $3"')
    with subprocess.Popen(["sleep", "60"]) as other:
        pids = [os.getpid(), other.pid, sleeper]
        done = Dumped(tmp_path, pids)
        other.kill()
    words = [f"{word} {pid}" for pid in (os.getpid(), sleeper) for word in ("begin", "end")]
    assert done.text.splitlines() == ["before", *words]
    assert done.notes == []


def test_without_py_spy_no_stacks_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sleeper: int) -> None:
    monkeypatch.setattr(stack_dump, "find_py_spy", lambda: None)
    done = Dumped(tmp_path, [sleeper])
    assert (done.text, done.notes) == ("before\n", [])


def test_messages_of_py_spy_are_noted_and_not_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sleeper: int
) -> None:
    in_place_of_py_spy(monkeypatch, tmp_path, "echo 'Error: Permission Denied' >&2; exit 1")
    done = Dumped(tmp_path, [sleeper])
    assert done.text == "before\n"
    assert done.notes == [f"no stacks of process {sleeper}: py-spy: Error: Permission Denied"]


def test_a_py_spy_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sleeper: int) -> None:
    begun = tmp_path / "begun"
    in_place_of_py_spy(monkeypatch, tmp_path, f"touch {begun}; exec sleep 600")
    monkeypatch.setattr(stack_dump, "_LIMIT_S", 0.05)
    # The limit is over when it hangs, and not before it has begun.
    monkeypatch.setattr(stack_dump, "time", types.SimpleNamespace(monotonic=lambda: float(begun.exists())))
    done = Dumped(tmp_path, [sleeper, os.getpid()])
    assert done.notes == [
        f"no stacks of process {sleeper}: py-spy: status -9",
        "no stacks of 1 processes: 0.05 s are over",
    ]


def test_stacks_of_any_number_of_processes_take_at_most_the_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_place_of_py_spy(monkeypatch, tmp_path, "echo stacks")
    monkeypatch.setattr(stack_dump, "_LIMIT_S", 0.0)
    monkeypatch.setattr(stack_dump, "_is_python", lambda _: pytest.fail("it was looked at"))
    done = Dumped(tmp_path, list(range(1, 10_000)))
    assert done.notes == ["no stacks of 9999 processes: 0 s are over"]


@pytest.mark.parametrize("kind", ["fifo", "directory"])
def test_stacks_are_written_to_regular_files_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sleeper: int, kind: str
) -> None:
    in_place_of_py_spy(monkeypatch, tmp_path, "echo stacks")
    place = tmp_path / kind
    os.mkfifo(place) if kind == "fifo" else place.mkdir()
    done = Dumped(tmp_path, [sleeper], path=place)
    assert len(done.notes) == 1
    assert done.notes[0].startswith(f"no stacks of process {sleeper}: ")


def test_py_spy_is_found_beside_the_python_or_on_an_absolute_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python3")
    program_at(tmp_path / "py-spy", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".:")
    assert stack_dump.find_py_spy() is None
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path}")
    assert stack_dump.find_py_spy() == str(tmp_path / "py-spy")
    (tmp_path / "bin").mkdir()
    (tmp_path / "py-spy").rename(tmp_path / "bin" / "py-spy")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python3"))
    assert stack_dump.find_py_spy() == str(tmp_path / "bin" / "py-spy")
