"""Lines in the logs of processes that nobody looks at."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys

import pytest

from dlapp.system.logs import log


def test_a_line_has_its_time_and_level_and_can_be_read_without(capfd: pytest.CaptureFixture[str]) -> None:
    log.info("all is well: 5 % done")
    log.warning("no NameNode answers")
    log.error("\udc80 is not UTF-8\nin two lines")
    lines = capfd.readouterr().out.splitlines()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    assert re.fullmatch(rf"{time} INFO all is well: 5 % done", lines[0])
    assert re.fullmatch(rf"{time} WARNING no NameNode answers", lines[1])
    assert [log.message_of(line) for line in lines] == [
        "all is well: 5 % done",
        "no NameNode answers",
        "\\udc80 is not UTF-8",
        "    in two lines",
    ]


@pytest.mark.parametrize("line", ["", "no time", "2025-03-04 is a day", "x 2025-03-04 17:02:11,305 INFO y"])
def test_a_line_without_time_and_level_is_read_as_it_is(line: str) -> None:
    assert log.message_of(line) == line


def test_a_log_line_on_a_full_disk_stops_no_program() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        code = "from dlapp.system.logs import log; log.error('lost')"
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(full)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_application_master_does_not_load_logging() -> None:
    code = "import sys, dlapp.am.loop; from dlapp.system.logs import log; sys.exit('logging' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_test_may_log_what_is_not_utf_8() -> None:
    logging.getLogger().warning("\udc80")  # pytest-xdist sends it with the report


@pytest.mark.parametrize("is_command", [True, False])
def test_commands_log_to_stderr_and_other_processes_to_stdout(is_command: bool) -> None:
    """A command is a process that reports its waits; a thread of it logs the line."""
    log_it = "thread = threading.Thread(target=log.info, args=['by WebHDFS']); thread.start(); thread.join()"
    block = f"with report_waits(print):\n    {log_it}" if is_command else log_it
    imports = "import threading\nfrom dlapp.system.logs import log\nfrom dlapp.system.waits import report_waits\n"
    done = subprocess.run([sys.executable, "-c", imports + block], capture_output=True, text=True, check=True)
    data, others = (done.stdout, done.stderr) if is_command else (done.stderr, done.stdout)
    assert data == ""
    assert others.endswith(" INFO by WebHDFS\n")
