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
one = nvml_subprocess.NvmlProcess(float(sys.argv[1]), again_s=(float(sys.argv[2]),) * 2)
def run(work):
    try:
        return work()
    except nvml.NvmlError as error:
        return error
for line in sys.stdin:
    try:
        answer = eval(line)
    except nvml.NvmlError as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
"""
BOTH = "[one.discover() == nvml.discover(), one.read(nvml.discover()) == nvml.read(nvml.discover())]"


class Asker:
    """A process that asks as the runner does."""

    def __init__(self, directory: Path, answer_s: float = 60.0, again_s: float = 0.0) -> None:
        self.directory = directory
        variables = with_devices(directory, [StubDevice(uuid="GPU-a", pids=(os.getpid(),)), StubDevice(uuid="GPU-b")])
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", PYTHON, str(answer_s), str(again_s)],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    @property
    def helper(self) -> int:
        return int(self.ask("one._pid"))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    one = Asker(tmp_path)
    yield one
    one.end()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_the_answers_are_those_of_nvml(asker: Asker) -> None:
    assert asker.ask(BOTH) == [True, True]
    with_devices(asker.directory, [StubDevice(uuid="GPU-a", error=15), StubDevice(uuid="GPU-b", used=1 << 30)])
    assert asker.ask(BOTH) == [True, True]
    with_devices(asker.directory, [], init=18)
    assert asker.ask("one.discover()") == asker.ask("nvml.discover()")
    assert "NVML: " in asker.ask("one.discover()")


def test_a_hanging_driver_is_reported_in_time_and_not_asked_until_it_recovers(asker: Asker) -> None:
    assert asker.ask(BOTH) == [True, True]
    asker.ask("setattr(one, 'answer_s', 0.5)")
    helper = asker.helper
    # In a driver that hangs a process does not die by SIGKILL; here it is as if: nobody has collected it yet.
    asker.ask("setattr(nvml_subprocess, '_has_ended', lambda pid: False)")
    with_devices(asker.directory, [], init=HANGS)
    assert asker.ask("one.discover()").startswith("NVML: no answer in 0.5 s: the driver hangs, or ")
    message = f"NVML: the driver hangs: process {helper} that called it has not returned; dmesg"
    assert asker.ask("one.discover()").startswith(message)
    asker.ask("setattr(one, 'answer_s', 60.0)")
    with_devices(asker.directory, [StubDevice(uuid="GPU-a")])
    asker.ask("setattr(nvml_subprocess, '_has_ended', lambda pid: True)")
    assert asker.ask("[each.uuid for each in one.discover()]") == ["GPU-a"]


def test_after_a_hang_all_requests_fail_at_once_for_a_while(tmp_path: Path) -> None:
    asker = Asker(tmp_path, 0.5, again_s=3600.0)
    try:
        asker.ask("setattr(nvml_subprocess, '_has_ended', lambda pid: True)")
        with_devices(tmp_path, [], init=HANGS)
        hang = asker.ask("one.discover()")
        with_devices(tmp_path, [StubDevice(uuid="GPU-a")])
        assert asker.ask("one.discover()") == hang
        assert asker.helper == 0  # no other process was started
        asker.ask("setattr(one, 'answer_s', 60.0)")
        asker.ask("setattr(one, '_again_at', 0.0)")
        assert asker.ask("[each.uuid for each in one.discover()]") == ["GPU-a"]
    finally:
        asker.end()


@pytest.mark.parametrize(
    ("question", "call"),
    [
        ("nvmlDeviceGetHandleByIndex", "one.discover()"),
        ("nvmlDeviceGetComputeMode", "one.discover()"),
        ("nvmlDeviceGetComputeRunningProcesses", "one.read(DEVICES)"),
        ("nvmlDeviceGetTemperature", "one.read(DEVICES)"),
        ("nvmlDeviceRegisterEvents", "one.watch(DEVICES).poll()"),
        ("nvmlDeviceGetMemoryInfo", "one.watch(DEVICES).poll()"),
        ("nvmlDeviceGetUtilizationRates", "one.watch(DEVICES).sample()"),
    ],
)
def test_a_hang_at_any_call_is_reported_in_time_and_recovered_from(asker: Asker, question: str, call: str) -> None:
    asker.ask("globals().__setitem__('DEVICES', nvml.discover())")
    with_devices(asker.directory, [StubDevice(uuid="GPU-a"), StubDevice(uuid="GPU-b", hang=question)])
    asker.ask("setattr(one, 'answer_s', 0.5)")
    message = str(asker.ask(call))
    # A watch that cannot be opened now is opened by the first question that is answered.
    assert message.startswith(("NVML: no answer in 0.5 s: the driver hangs", "NVML: the driver hangs: process"))
    with_devices(asker.directory, [StubDevice(uuid="GPU-a"), StubDevice(uuid="GPU-b")])
    asker.ask("setattr(one, 'answer_s', 60.0)")
    wait_until(lambda: asker.ask(f"bool({call}) in (True, False)") is True)  # the killed process has to be gone


def test_a_watch_finds_the_faults_also_after_its_process_was_killed(asker: Asker) -> None:
    asker.ask("globals().__setitem__('watched', one.watch(nvml.discover()))")
    assert asker.ask("watched.poll()") == {}
    assert set(asker.ask("watched.sample()")) == {"GPU-a", "GPU-b"}
    first = asker.helper
    assert asker.ask(BOTH) == [True, True]  # other queries do not end it
    assert asker.helper == first
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_running(first))
    assert asker.ask("watched.poll()") == {}
    with_devices(asker.directory, [StubDevice(uuid="GPU-a"), StubDevice(uuid="GPU-b", error=15)])
    assert asker.ask("watched.poll()") == {"GPU-b": ["lost", "GPU is lost", False, ""]}


def test_an_interrupted_request_does_not_answer_the_next_one(asker: Asker) -> None:
    assert asker.ask(BOTH) == [True, True]
    message = asker.ask(
        "(lambda read: (setattr(nvml_subprocess, '_read', lambda *_: (_ for _ in ()).throw(nvml.NvmlError('stop'))), "
        "str(run(one.discover)), setattr(nvml_subprocess, '_read', read)))(nvml_subprocess._read)[1]"
    )
    assert message == "stop"
    assert asker.ask(BOTH) == [True, True]


def test_a_killed_or_ended_helper_is_replaced(asker: Asker) -> None:
    assert asker.ask(BOTH) == [True, True]
    first = asker.helper
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_running(first))
    assert asker.ask(BOTH) == [True, True]
    assert asker.helper != first


def test_the_helper_ends_with_its_asker(asker: Asker) -> None:
    assert asker.ask(BOTH) == [True, True]
    helper = asker.helper
    assert is_running(helper)
    asker.process.kill()
    wait_until(lambda: not is_running(helper))


def test_the_helper_inherits_no_descriptor_of_its_caller(asker: Asker, tmp_path: Path) -> None:
    asker.ask(f"os.set_inheritable(os.open({str(tmp_path)!r}, os.O_RDONLY), True)")
    assert asker.ask(BOTH) == [True, True]
    assert str(tmp_path) not in open_files(asker.helper)
    assert os.readlink(f"/proc/{asker.helper}/cwd") == "/"


def test_a_child_of_its_asker_does_not_talk_to_the_helper(asker: Asker) -> None:
    assert asker.ask(BOTH) == [True, True]
    asker.ask("globals().__setitem__('one_pid', one._pid)")
    answer = asker.ask(
        "(lambda pid: os._exit(0 if len(one.discover()) == 2 and one._pid not in (0, one_pid) else 1) "
        "if pid == 0 else os.waitpid(pid, 0)[1])(os.fork())"
    )
    assert answer == 0
    assert asker.ask(BOTH) == [True, True]


def test_without_nvml_no_process_is_started() -> None:
    if any(name.startswith("nvidia") for name in os.listdir("/dev")):
        pytest.skip("this machine has NVIDIA GPUs")
    code = "from dlapp.gpuid.health.nvml_subprocess import NvmlProcess; one = NvmlProcess(); "
    code += "assert one.discover() == (); assert one._pid == 0"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
