"""NVML asked in a process of its own: the same answers, and one in time where the driver hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.applications import open_files
from tests.services.containers.nvml_stub import HANGS, StubDevice, with_devices
from tests.services.polling import wait_until

PYTHON = """
import json, os, sys
from dlapp.gpuid.health import nvml_subprocess, nvml
for line in sys.stdin:
    try:
        answer = eval(line)
    except nvml.NvmlError as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
"""
BOTH = (
    "[nvml_subprocess.discover() == nvml.discover(), "
    "nvml_subprocess.read(nvml.discover()) == nvml.read(nvml.discover())]"
)


class Asker:
    """A process that asks as the runner does."""

    def __init__(self, directory: Path, answer_s: float) -> None:
        self.directory = directory
        variables = with_devices(directory, [StubDevice(uuid="GPU-a", pids=(os.getpid(),)), StubDevice(uuid="GPU-b")])
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", PYTHON],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.ask(f"setattr(nvml_subprocess, 'ANSWER_S', {answer_s})") is None

    def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    @property
    def helper(self) -> int:
        return int(self.ask("nvml_subprocess._process._pid"))


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    one = Asker(tmp_path, 60.0)
    yield one
    one.process.kill()
    one.process.communicate()


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_the_answers_are_those_of_nvml(asker: Asker) -> None:
    assert asker.ask(BOTH) == [True, True]
    with_devices(asker.directory, [StubDevice(uuid="GPU-a", error=15), StubDevice(uuid="GPU-b", used=1 << 30)])
    assert asker.ask(BOTH) == [True, True]
    with_devices(asker.directory, [], init=18)
    assert asker.ask("nvml_subprocess.discover()") == asker.ask("nvml.discover()")
    assert "NVML: " in asker.ask("nvml_subprocess.discover()")


def test_a_driver_that_hangs_is_said_in_time_and_nobody_asks_again_until_it_has_come_back(asker: Asker) -> None:
    assert asker.ask(BOTH) == [True, True]
    asker.ask("setattr(nvml_subprocess, 'ANSWER_S', 0.5)")
    helper = asker.helper
    # In a driver that hangs a process does not die by SIGKILL; here it is as if: nobody has collected it yet.
    asker.ask("setattr(nvml_subprocess, '_has_ended', lambda pid: False)")
    with_devices(asker.directory, [], init=HANGS)
    assert asker.ask("nvml_subprocess.discover()") == "NVML: no answer in 0.5 s: the driver hangs"
    said = f"NVML: the driver hangs: process {helper} that called it has not returned"
    assert asker.ask("nvml_subprocess.discover()") == said
    asker.ask("setattr(nvml_subprocess, 'ANSWER_S', 60.0)")
    with_devices(asker.directory, [StubDevice(uuid="GPU-a")])
    asker.ask("setattr(nvml_subprocess, '_has_ended', lambda pid: True)")
    assert asker.ask("[one.uuid for one in nvml_subprocess.discover()]") == ["GPU-a"]


def test_a_helper_that_was_killed_or_went_is_replaced(asker: Asker) -> None:
    assert asker.ask(BOTH) == [True, True]
    first = asker.helper
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not lives(first))
    assert asker.ask(BOTH) == [True, True]
    assert asker.helper != first


def test_the_helper_ends_with_its_asker(asker: Asker) -> None:
    assert asker.ask(BOTH) == [True, True]
    helper = asker.helper
    assert lives(helper)
    asker.process.kill()
    wait_until(lambda: not lives(helper))


def test_the_helper_holds_nothing_that_its_asker_has_open(asker: Asker, tmp_path: Path) -> None:
    asker.ask(f"os.set_inheritable(os.open({str(tmp_path)!r}, os.O_RDONLY), True)")
    assert asker.ask(BOTH) == [True, True]
    assert str(tmp_path) not in open_files(asker.helper)


def test_a_child_of_its_asker_does_not_talk_to_the_helper(asker: Asker) -> None:
    assert asker.ask(BOTH) == [True, True]
    said = asker.ask(
        "(lambda pid: os._exit(0 if nvml_subprocess._process._pid == 0 "
        "and len(nvml_subprocess.discover()) == 2 else 1) "
        "if pid == 0 else os.waitpid(pid, 0)[1])(os.fork())"
    )
    assert said == 0
    assert asker.ask(BOTH) == [True, True]


def test_without_nvml_no_process_is_started() -> None:
    if any(name.startswith("nvidia") for name in os.listdir("/dev")):
        pytest.skip("this machine has NVIDIA GPUs")
    code = "from dlapp.gpuid.health import nvml_subprocess; assert nvml_subprocess.discover() == (); "
    code += "assert nvml_subprocess._process._pid == 0"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
