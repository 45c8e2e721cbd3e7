"""The end of a guardian: it waits for no child that is not a payload's."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import json, os, subprocess, sys
from dlapp.runtime.guardian import fork_guardian
from dlapp.runtime.process import Guardian

guardian = Guardian(*fork_guardian())
other = subprocess.Popen(["/bin/sleep", "600"])
orphan = subprocess.Popen(["/bin/sleep", "600"])  # as of a guardian that was killed
if sys.argv[1] == "spared":
    guardian.spared = lambda: {other.pid}
guardian.close()
print(json.dumps([os.path.exists(f"/proc/{one.pid}") for one in (other, orphan)]))
other.kill()
"""


@pytest.mark.parametrize(("how", "expected"), [("spared", "[true, false]"), ("not", "[false, false]")])
def test_a_process_that_calls_a_hanging_driver_is_not_waited_for(how: str, expected: str) -> None:
    """Such a child does not end, whatever signal it gets; the end of the payload must be reported nevertheless."""
    done = subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == (expected, 0), done.stderr
