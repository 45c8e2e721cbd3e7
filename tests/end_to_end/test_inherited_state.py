"""Ignored signals and the scheduling policy of a command reach its own application at most."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.applications import BIN, properties, run
from tests.end_to_end.test_applications import END_S, printed
from tests.engines import Engine

pytestmark = pytest.mark.parametrize("engine", ["local"], indirect=True)

IGNORED = {signal.SIGCHLD, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1, signal.SIGALRM, signal.SIGHUP}
"""A daemon ignores SIGCHLD so that it need not wait for its children; a shell without job control ignores SIGINT and
SIGQUIT of what it starts in the background, nohup SIGHUP."""
SHOW = f"""{sys.executable} -c 'import signal
print(*sorted(int(one) for one in signal.valid_signals() if signal.getsignal(one) == signal.SIG_IGN))'"""


def submit(file: Path, *, prepare: Callable[[], object] | None = None) -> None:
    done = subprocess.run(
        [BIN / "dlapp-launcher", "--wait", file],
        capture_output=True,
        text=True,
        preexec_fn=prepare,
        restore_signals=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def ignore_signals() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


def run_in_batches() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def test_signals_that_the_command_ignores_are_not_ignored_by_programs(engine: Engine, tmp_path: Path) -> None:
    own = {signal.SIGPIPE, signal.SIGXFSZ}  # Python's own
    by_itself = subprocess.run(
        shlex.split(SHOW), stdout=subprocess.PIPE, preexec_fn=ignore_signals, restore_signals=False
    )
    assert set(map(int, by_itself.stdout.split())) == IGNORED | own
    for name, prepare in (("first", ignore_signals), ("second", None)):
        submit(properties(tmp_path, SHOW, name=name), prepare=prepare)
        (line,) = printed("--stdout")
        assert set(map(int, line.removeprefix("[0] ").split())) == own


def test_a_scheduling_policy_is_that_of_the_command_that_submits(engine: Engine, tmp_path: Path) -> None:
    policy = f"{sys.executable} -c 'import os; print(os.sched_getscheduler(0))'"
    waits = f"{policy}; until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    first = properties(tmp_path, waits, name="first", resources={"vcores": 1})
    done = subprocess.run([BIN / "dlapp-launcher", first], capture_output=True, text=True, preexec_fn=run_in_batches)
    assert done.returncode == 0, done.stderr
    application = next(word for word in done.stdout.split() if word.startswith("application_"))
    submit(properties(tmp_path, policy, name="second", resources={"vcores": 1}))
    assert printed("--stdout") == [f"[0] {os.SCHED_OTHER}"]
    (tmp_path / "go").touch()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0
    assert printed("--stdout", application) == [f"[0] {os.SCHED_BATCH}"]
