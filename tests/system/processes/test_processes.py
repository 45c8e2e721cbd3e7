from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from dlapp.system.processes.proc import (
    all_processes,
    command_line,
    open_process,
    process_stat,
    real_uid,
    start_time,
    status_fields,
)

NOBODY = 2**22 + 1
"""No pid: the kernel's largest is smaller. Source: proc(5), /proc/sys/kernel/pid_max."""


def test_a_process_is_named_by_its_start_time() -> None:
    assert start_time(os.getpid()) == start_time(os.getpid())
    done = subprocess.Popen(["true"])
    done.wait()
    assert start_time(done.pid) is None


def test_a_program_whose_name_has_brackets_and_blanks_is_read_right(tmp_path: Path) -> None:
    program = tmp_path / "a) S (b"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        while command_line(process.pid)[1:] != [b"60", b""]:  # the kernel is still replacing the program
            time.sleep(0.001)
        found = process_stat(process.pid)
        assert found is not None
        assert (found.program, found.parent, found.threads) == (b"a) S (b", os.getpid(), 1)
        assert found in [item._replace(state=found.state) for item in all_processes()]
        process.kill()


def test_an_unreaped_process_is_dead() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        found = process_stat(process.pid)
        assert found is not None
        assert found.is_dead
        assert start_time(process.pid) is None


def test_a_missing_process_has_no_facts() -> None:
    assert process_stat(NOBODY) is None
    assert real_uid(NOBODY) is None
    assert status_fields(NOBODY, "Umask") == []
    assert command_line(NOBODY) == [b""]
    assert open_process(NOBODY, 1, os.geteuid()) is None


def test_a_process_is_opened_only_by_its_start_time_and_user() -> None:
    started = start_time(os.getpid())
    assert started is not None
    fd = open_process(os.getpid(), started, os.getuid())
    assert fd is not None
    os.close(fd)
    assert open_process(os.getpid(), started + 1, os.getuid()) is None
    assert open_process(os.getpid(), started, os.getuid() + 1) is None
    assert status_fields("self", "Pid") == [str(os.getpid()).encode()]
