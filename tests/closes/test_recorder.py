"""The mode that finds double closes finds those that are planted, also in an isolated process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.closes.copy import copy_tree, record

BEGINNING = """\
import os, sys
sys.path.append(sys.argv[1])
import dlapp

def first(fd):
    os.close(fd)

def second(fd):
    try:
        os.close(fd)
    except OSError:
        pass

fd = os.open("/dev/null", os.O_RDONLY)
"""
FOUND = {
    "a number twice": ("first(fd); second(fd)", ("second", "it was closed before", "first")),
    "the number of a file": ("file = open(fd, 'rb'); first(fd)", ("first", "it belongs to <_io.BufferedReader")),
    "the number that a file had": (
        "open(fd, 'rb').close(); second(fd)",
        ("second", "by the BufferedReader that was opened"),
    ),
    "the number of another's socket": (
        "first(fd); import socket; other = socket.socket(); assert other.fileno() == fd; second(fd)",
        ("second", "it belongs to <socket.socket"),
    ),
    "the number that a socket had": (
        "import socket; one = socket.socket(); fd = one.fileno(); one.close(); second(fd)",
        ("second", "it was closed before"),
    ),
}
HARMLESS = {
    "each once": "other = os.open('/dev/null', os.O_RDONLY); first(fd); first(other)",
    "a number that is used again": "first(fd); again = os.open('/dev/null', os.O_RDONLY); first(again)",
    "a socket that gave its number away": "import socket; first(socket.socket().detach()); first(fd)",
    "a file without its number": "open(fd, 'rb', closefd=False).close(); first(fd)",
    "a child that closes its copy": "file = open(fd, 'rb')\nif not os.fork(): first(fd); os._exit(0)\nos.wait()",
}


def reports(tmp_path: Path, program: str) -> list[str]:
    """Run a program isolated, with a dlapp that records; return its reports."""
    (tmp_path / "dlapp").mkdir()
    record(tmp_path / "dlapp", tmp_path / "reports")
    command = [sys.executable, "-I", "-S", "-c", BEGINNING + program, str(tmp_path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return [path.read_text() for path in (tmp_path / "reports").iterdir()]


@pytest.mark.parametrize("what", FOUND)
def test_a_double_close_is_reported_with_both_callers(tmp_path: Path, what: str) -> None:
    program, words = FOUND[what]
    (report,) = reports(tmp_path, program)
    assert [word for word in words if word not in report] == []


@pytest.mark.parametrize("what", HARMLESS)
def test_closing_ones_own_descriptor_is_not_reported(tmp_path: Path, what: str) -> None:
    assert reports(tmp_path, HARMLESS[what]) == []


def test_a_copy_of_a_copy_has_the_files_of_the_tree(tmp_path: Path) -> None:
    copy_tree(tmp_path / "first")
    (tmp_path / "first" / ".cache").mkdir()
    (tmp_path / "first" / ".cache" / "made").touch()
    copy_tree(tmp_path / "second", tmp_path / "first")
    first, second = (
        {path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*")} for name in ("first", "second")
    )
    assert first - second == {Path(".cache"), Path(".cache/made")}
    assert second - first == set()
    assert Path("dlapp/__main__.py") in second
