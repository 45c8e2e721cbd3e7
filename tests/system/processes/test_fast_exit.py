"""The end of a process without the teardown of its modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = "import atexit, sys; from dlapp.system.processes.fast_exit import run_and_exit\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_ends_with_its_code_and_all_that_it_printed(code: int) -> None:
    done = run(f"print('out', end=''); run_and_exit(lambda: (print('err', end='', file=sys.stderr), {code})[1])")
    assert (done.returncode, done.stdout, done.stderr) == (code, "out", "err")


def test_exit_handlers_run_and_objects_are_not_finalized() -> None:
    done = run(
        "class Object:\n"
        "    def __del__(self): print('taken apart')\n"
        "one = Object()\n"
        "run_and_exit(lambda: (atexit.register(print, 'at the end'), 0)[1])"
    )
    assert (done.returncode, done.stdout) == (0, "at the end\n")


def test_an_exception_ends_it_as_ever() -> None:
    done = run("run_and_exit(lambda: 1 // 0)")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
