"""Owners of the processes on a leased GPU: the payload, allowed programs, and others."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dlapp.gpuid.health.attribution import MAX_FOREIGN, ProcessAttribution, UnleasedProcess, merged
from dlapp.gpuid.health.readings import ListedProcess

NOBODY = 4194400
"""Pid above those that the kernel gives."""


@pytest.fixture
def foreign() -> Iterator[int]:
    """Return the pid of a process that sleeps."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process.pid
        process.kill()


def attribution(own: dict[int, bool | None], allowed: tuple[str, ...] = ()) -> ProcessAttribution:
    return ProcessAttribution(own.get, allowed)


def test_a_process_that_is_not_the_payloads_is_named_with_its_program_and_its_user(foreign: int) -> None:
    listed = [ListedProcess(os.getpid(), 11_000), ListedProcess(foreign, 5000)]
    found = attribution({os.getpid(): True, foreign: False}).attribute(listed, 16_300, 7.0)
    assert found.own_mib == 11_000
    (one,) = found.foreign
    assert (one.pid, one.program, one.user) == (foreign, "sleep", getpass.getuser())
    assert (one.used_mib, one.peak_mib, one.seen_s) == (5000, 5000, 7.0)
    assert one.description == f"sleep, user {getpass.getuser()}"


def test_programs_that_the_host_allows_are_not_foreign(foreign: int) -> None:
    found = attribution({foreign: False}, ("sleep",)).attribute([ListedProcess(foreign, 300)], 1000, 0.0)
    assert found.foreign == ()
    assert found.own_mib == 700


def test_an_unknown_process_is_never_named(foreign: int) -> None:
    listed = [ListedProcess(NOBODY, 100), ListedProcess(foreign, 100)]
    found = attribution({foreign: None}).attribute(listed, 1000, 0.0)
    assert found.foreign == ()
    assert found.own_mib == 1000, "a leased GPU is the payload's"
    found = attribution({foreign: None, os.getpid(): True}).attribute([*listed, ListedProcess(os.getpid(), 7)], 1000, 0)
    assert found.own_mib == 7


@pytest.mark.parametrize(
    ("own_mib", "foreign_mib", "used_mib", "expected"),
    [(300, 200, 900, 300), (None, 200, 900, 700), (None, None, 900, None), (None, 200, None, None)],
    ids=["of each process", "used by all but the others", "of no process", "used memory is not reported either"],
)
def test_the_payloads_memory_is_that_of_its_processes_or_the_remainder(
    foreign: int, own_mib: int | None, foreign_mib: int | None, used_mib: int | None, expected: int | None
) -> None:
    listed = [ListedProcess(os.getpid(), own_mib), ListedProcess(foreign, foreign_mib)]
    found = attribution({os.getpid(): True, foreign: False}).attribute(listed, used_mib, 0.0)
    assert found.own_mib == expected


def test_a_process_is_identified_once(foreign: int) -> None:
    asked: list[int] = []

    def is_own(pid: int) -> bool:
        asked.append(pid)
        return False

    one = ProcessAttribution(is_own, ())
    for _ in range(3):
        assert len(one.attribute([ListedProcess(foreign)], None, 0.0).foreign) == 1
    assert asked == [foreign]


def test_the_name_that_a_program_gives_itself_is_printable_and_short() -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    name = "\x1b[31m" + "long" * 50
    with subprocess.Popen(
        [name, "-c", code], executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (one,) = attribution({process.pid: False}).attribute([ListedProcess(process.pid)], None, 0.0).foreign
        process.kill()
    assert one.program.startswith("?[31mlong")
    assert len(one.program) == 64


def test_the_largest_foreign_processes_are_kept_with_their_peaks() -> None:
    def process(pid: int, mib: int | None) -> UnleasedProcess:
        return UnleasedProcess(pid, 1, "python", "ann", mib, mib)

    before = merged((), [process(pid, pid) for pid in range(1, MAX_FOREIGN + 5)])
    assert [item.pid for item in before] == list(range(MAX_FOREIGN + 4, 4, -1))
    after = merged(before, [process(12, 3), process(99, None)])
    (same,) = [item for item in after if item.pid == 12]
    assert (same.used_mib, same.peak_mib) == (3, 12)
    assert len(after) == MAX_FOREIGN
