"""Commands with standard streams that are closed, full or broken."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.applications import BIN, properties, run, status


def run_with(redirections: str, command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command with redirections of a shell; what is not redirected is captured."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh", str(BIN / command), *map(str, arguments)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


CLOSED = [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"]


@pytest.mark.parametrize("redirections", [*CLOSED, "2>/dev/full"])
@pytest.mark.parametrize(
    ("command", "arguments", "code"),
    [
        ("dlapp-list", (), 0),
        ("dlapp-queue", ("--json",), 0),
        ("dlapp-status", ("no_such_id",), 2),
        ("dlapp-logs", ("--no-such-option",), 2),
        ("dlapp-launcher", ("missing.properties",), 2),
        ("dlapp", ("help", "list"), 0),
        ("dlapp-gpu", ("--version",), 0),
    ],
)
def test_a_closed_stream_changes_neither_exit_code_nor_output(
    state_dir: Path, redirections: str, command: str, arguments: tuple[str, ...], code: int
) -> None:
    usual = run_with("", command, *arguments)
    done = run_with(redirections, command, *arguments)
    assert (usual.returncode, done.returncode) == (code, code)
    assert done.stdout == ("" if ">&-" in redirections.replace("2>&-", "") else usual.stdout)
    assert done.stderr == ("" if "2>" in redirections else usual.stderr)


@pytest.mark.parametrize("redirections", [*CLOSED, "2>/dev/full"])
def test_an_application_is_submitted_and_runs_without_the_streams(state_dir: Path, redirections: str) -> None:
    file = properties(state_dir.parent, "echo hello; cat; echo end")
    assert run_with(redirections, "dlapp-launcher", "--wait", file).returncode == 0
    assert status("last")["state"] == "FINISHED"
    logs = run_with("", "dlapp-logs", "--container", "0")
    assert logs.stdout == "hello\nend\n"


@pytest.mark.parametrize("redirections", CLOSED)
def test_a_shell_command_runs_without_the_streams(state_dir: Path, redirections: str) -> None:
    file = properties(state_dir.parent, "exit 3")
    done = run_with(redirections, "dlapp-launcher", "--wait", file)
    assert done.returncode == 1
    assert " failed " in run("dlapp-list").out


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("dlapp-list", ()),
        ("dlapp-queue", ("--json",)),
        ("dlapp-launcher", ("--help",)),
        ("dlapp-status", ("--version",)),
        ("dlapp", ()),
    ],
)
def test_an_output_that_is_full_is_one_error_line(state_dir: Path, command: str, arguments: tuple[str, ...]) -> None:
    done = run_with(">/dev/full", command, *arguments)
    assert (done.returncode, done.stderr) == (1, "Error: standard output: No space left on device\n")
    assert run_with(">/dev/full 2>&1", command, *arguments).returncode == 1


def test_an_output_that_is_open_for_reading_only_is_one_error_line(state_dir: Path) -> None:
    done = run_with("1</dev/null", "dlapp-list")
    assert (done.returncode, done.stderr) == (1, "Error: standard output: Bad file descriptor\n")


@pytest.mark.parametrize("arguments", [("dlapp-list",), ("dlapp-launcher", "--help"), ("dlapp-queue", "--json")])
def test_a_pipe_without_a_reader_ends_the_command_quietly(state_dir: Path, arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([BIN / arguments[0], *arguments[1:]], stdout=writer, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (141, b"")
    done = subprocess.run([BIN / arguments[0], *arguments[1:]], stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert done.returncode == 0
    assert done.stdout
