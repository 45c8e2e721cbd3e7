"""Test what the payload of a head can do to its task by requests of mpirun."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.am.control.server import MAX_REPORT_BYTES
from dlapp.task.mpi import launches as launches_module
from dlapp.task.mpi.files import DIRECTORY, MpiFiles
from dlapp.task.mpi.launches import HeadLaunches
from dlapp.values.messages import LaunchState, MpiLaunch
from dlapp.values.serialization import to_json


class Link:
    """An ApplicationMaster that says what is set here, and remembers what was reported last."""

    def __init__(self) -> None:
        self.states: tuple[LaunchState, ...] = ()
        self.reported: tuple[MpiLaunch, ...] = ()

    def launches(self, _generation: int) -> tuple[tuple[MpiLaunch, ...], tuple[LaunchState, ...]]:
        return (), self.states

    def report_fields(self, *, launches: tuple[MpiLaunch, ...]) -> None:
        self.reported = launches
        assert len(json.dumps([to_json(launch) for launch in launches])) < MAX_REPORT_BYTES - (32 << 10)


class Head:
    """The task's side of a head, and the directory as its payload writes it."""

    def __init__(self, path: Path) -> None:
        self.notes: list[str] = []
        self.path, self.link = path / DIRECTORY, Link()
        self.files = MpiFiles(f"{path}")
        self.launches = HeadLaunches(self.files, self.notes.append)

    def ask(self, *requests: tuple[int, str, str]) -> None:
        for number, directory, command in requests:
            text = f"dlapp-container-1\n{directory}\n{command}\n"
            (self.path / f"request.{number}").write_text(text)
            (self.path / "requests").write_text(f"{number}\n")
        self.exchange()

    def exchange(self) -> None:
        link: Any = self.link
        self.launches.exchange(link, 0)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    tmp_path.chmod(0o700)
    one = Head(tmp_path)
    yield one
    one.files.close()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("text", ["x" * 30_000, "\x01" * 15_000, "é" * 15_000, "x"], ids=["x", "control", "é", "short"])
@pytest.mark.parametrize("where", ["directory", "command"])
def test_no_number_of_requests_makes_a_report_that_is_too_long(head: Head, where: str, text: str) -> None:
    asked = 100 if len(text) > 1 else 12_000
    for first in range(0, asked, 1000):
        batch = range(first, min(asked, first + 1000))
        head.ask(*((number, *((text, "c") if where == "directory" else (".", text))) for number in batch))
    head.link.states = tuple(LaunchState(number=item.number) for item in head.link.reported)
    head.exchange()
    ended = 0
    while head.link.reported:
        ended += len(head.link.reported)
        head.link.states = tuple(LaunchState(number=item.number, status=0) for item in head.link.reported)
        head.exchange()
    refused = sum("at most" in line for line in head.notes)
    assert ended + refused == asked


def test_numbers_without_end_are_not_kept(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches_module, "_MAX_WAITING", 100)
    monkeypatch.setattr(launches_module, "_MAX_REPORTED_BYTES", 0)
    fd = os.open(head.path / "requests", os.O_WRONLY | os.O_NONBLOCK)
    for _ in range(5):
        os.write(fd, b"1\n" * 1000)
        head.exchange()
    os.close(fd)
    assert len(head.launches._waiting) == 100
    assert head.notes == []
