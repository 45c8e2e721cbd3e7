"""Failures of all kinds are named rightly, and the page of causes lists each of them (`tests.diagnosis.failures`)."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dlapp.task.failure import with_cause
from dlapp.values.messages import Diagnosis, Evidence, Fault, TaskResult
from tests.diagnosis.failures import MADE, MADE_WITH_TORCH, ON_SERVERS, RECORDED, Failure
from tests.services.debian import PYTHON
from tests.services.install import required

TESTS = Path(__file__).parents[1]


def named(home: Path, code: int) -> Diagnosis:
    """Return the cause that a task names for a payload whose logs are in a directory.

    Args:
        home: it has ``stderr`` and ``stdout``.
        code: how the payload ended, as `subprocess` has it.
    """
    ended = TaskResult(fault=Fault.USER, exit_code=None if code < 0 else code, signal=-code if code < 0 else None)
    found = with_cause(ended, str(home), pytest.fail).diagnosis
    assert found is not None, (code, (home / "stderr").read_text(), (home / "stdout").read_text())
    return found


def check(found: Diagnosis, wanted: Failure, home: Path) -> None:
    """Compare a cause with what was wanted, and its evidence with the bytes of the log."""
    assert (found.rule, found.fault.value) == (wanted.rule, wanted.fault), found
    assert found.cause.startswith(wanted.cause)
    assert found.next_step
    if found.evidence is None:
        assert not wanted.evidence
        return
    check_evidence(found.evidence, home)
    assert found.evidence.line.startswith(wanted.evidence)


def check_evidence(evidence: Evidence, home: Path) -> None:
    """Check that the line is in the file, and begins where it is said to."""
    data = (home / evidence.file).read_bytes()
    assert evidence.offset == 0 or data[evidence.offset - 1 : evidence.offset] in (b"\n", b"\r")
    line = re.split(rb"[\r\n]", data[evidence.offset :], maxsplit=1)[0]
    assert evidence.line.strip("…") in line.decode()


@pytest.mark.parametrize("what", MADE)
def test_a_failure_that_is_made_here_is_named(tmp_path: Path, what: str) -> None:
    failure = MADE[what]
    env = {"PYTHON": sys.executable, "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    with open(tmp_path / "stderr", "wb") as stderr, open(tmp_path / "stdout", "wb") as stdout:
        done = subprocess.run(
            ["sh", "-c", failure.script], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
        )
    assert done.returncode != 0
    check(named(tmp_path, done.returncode), failure, tmp_path)


FORKS = """
import os, signal, sys, torch
cases = eval(sys.stdin.read())
pids = {}
for number, body in enumerate(cases):
    os.mkdir(str(number))
    if (pid := os.fork()) == 0:
        os.setpgid(0, 0)
        os.chdir(str(number))
        for fd, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), fd)
        exec(compile(body, "train.py", "exec"), {"torch": torch, "__name__": "__main__"})
        os._exit(0)
    pids[pid] = number
while pids:
    pid, status = os.wait()
    print(pids.pop(pid), os.waitstatus_to_exitcode(status), flush=True)
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


@pytest.fixture(scope="module")
def torch_ends(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Path, int]]:
    """Return the directories with the logs of the failures that need PyTorch, and how each ended."""
    home = tmp_path_factory.mktemp("torch")
    done = subprocess.run(
        [PYTHON, "-c", FORKS],
        cwd=home,
        input=repr([item.script for item in MADE_WITH_TORCH.values()]),
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
    )
    if "No module named 'torch'" in done.stderr and not required():
        pytest.skip(f"no PyTorch for {PYTHON} (package python3-torch)")
    assert done.returncode == 0, done.stderr
    ends = [line.split() for line in done.stdout.splitlines()]
    codes = {int(number): int(code) for number, code in ends}
    return {what: (home / str(number), codes[number]) for number, what in enumerate(MADE_WITH_TORCH)}


@pytest.mark.slow
@pytest.mark.parametrize("what", MADE_WITH_TORCH)
def test_a_failure_of_pytorch_that_is_made_here_is_named(torch_ends: Mapping[str, tuple[Path, int]], what: str) -> None:
    home, code = torch_ends[what]
    check(named(home, code), MADE_WITH_TORCH[what], home)


@pytest.mark.parametrize("what", RECORDED)
def test_a_failure_that_was_recorded_is_named(tmp_path: Path, what: str) -> None:
    (tmp_path / "stderr").write_bytes(f"epoch 1, loss 0.3\n{RECORDED[what].text}".encode())
    (tmp_path / "stdout").touch()
    check(named(tmp_path, 1), RECORDED[what], tmp_path)


@pytest.mark.parametrize("what", ON_SERVERS)
def test_each_cause_has_a_test_with_a_real_server(what: str) -> None:
    wanted = ON_SERVERS[what]
    path, _, name = wanted.test.partition("::")
    source = (TESTS / path).read_text()
    (body,) = [
        ast.unparse(item) for item in ast.parse(source).body if isinstance(item, ast.FunctionDef) and item.name == name
    ]
    assert f"'{wanted.rule}'" in body


def test_more_than_forty_failures_are_made_recorded_or_met_on_servers() -> None:
    assert len({*MADE, *MADE_WITH_TORCH, *RECORDED, *ON_SERVERS}) > 40
