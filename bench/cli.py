"""What a user waits for at the prompt, against an empty Python process, the least that any command can take.

status, list, help    a whole process, in a state directory with two applications in it
submit                dlapp-launcher of examples/digits, from its start until "DL App ID" can be read
first-line            from there until the first line of a payload stands in its stdout file
pack                  throughput of packing a workspace (bench/pack.py)
am-memory             resident memory of an ApplicationMaster with 200 containers (bench/am_memory.py)

The yardstick, ``python3 -c pass``, is the interpreter that dlapp runs in, measured in turn with ours. Times are
medians. Everything happens in a state directory that is thrown away.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from bench import Row, alternately, am_memory, median_ratio, pack
from bench._throwaway import COMMANDS, DEADLINE_S, command, own_state, whole_process_s

ROUNDS = 21
SUBMISSIONS = 15
DIGITS = Path(__file__).parent.parent / "examples" / "digits"


def rows() -> list[Row]:
    """Measure all of the above."""
    found = []
    with own_state() as (state, environment):
        properties = copy_of_digits(state)
        for _ in range(2):
            command(environment, "dlapp-launcher", "--wait", str(properties))
        found += processes(environment)
        found += submission(environment, properties)
    return [*found, *pack.rows(), *am_memory.rows()]


def processes(environment: dict[str, str]) -> list[Row]:
    """Whole processes: status, list and help."""
    lines = {
        "status": (7.0, ["dlapp-status"]),
        "list": (7.0, ["dlapp-list"]),
        "help": (5.0, ["dlapp-status", "--help"]),
    }
    measures = [lambda: whole_process_s(environment, [sys.executable, "-c", "pass"])]
    for _, (name, *args) in lines.values():
        argv = [str(COMMANDS / name), *args]
        measures.append(lambda argv=argv: whole_process_s(environment, argv))  # type: ignore[misc]
    yardstick, *ours = alternately(measures, ROUNDS)
    return [
        Row(
            name=name,
            ratio=median_ratio(times, yardstick),
            goal=goal,
            better="lower",
            conditions={
                "command": " ".join(argv),
                "ms": 1000 * statistics.median(times),
                "empty_python_ms": 1000 * statistics.median(yardstick),
                "runs": ROUNDS,
            },
        )
        for (name, (goal, argv)), times in zip(lines.items(), ours, strict=True)
    ]


def submission(environment: dict[str, str], properties: Path) -> list[Row]:
    """Submissions of digits to an idle engine: until the id is printed, and on to the payload's first line."""
    until_id, until_line, whole, yardstick = [], [], [], []
    for number in range(SUBMISSIONS + 1):
        empty = whole_process_s(environment, [sys.executable, "-c", "pass"])
        to_id, to_end, to_line = submit_once(environment, properties)
        if number:  # the first one warms the caches
            yardstick.append(empty)
            until_id.append(to_id)
            whole.append(to_end)
            until_line.append(to_line)
    conditions = {"empty_python_ms": 1000 * statistics.median(yardstick), "runs": SUBMISSIONS}
    return [
        Row(
            name="submit",
            ratio=median_ratio(until_id, yardstick),
            goal=12.0,
            better="lower",
            conditions={
                "ms": 1000 * statistics.median(until_id),
                "until_the_launcher_ended_ms": 1000 * statistics.median(whole),
                **conditions,
            },
        ),
        Row(
            name="first-line",
            ratio=median_ratio(until_line, yardstick),
            goal=18.0,
            better="lower",
            conditions={"ms": 1000 * statistics.median(until_line), **conditions},
        ),
    ]


def submit_once(environment: dict[str, str], properties: Path) -> tuple[float, float, float]:
    """Submit, wait for the payload's first line, then for the end.

    Returns:
        Seconds from start to the id, from start to the launcher's end, from the id to the first line.
    """
    argv = [str(COMMANDS / "dlapp-launcher"), str(properties)]
    ended: list[float] = []
    began = time.perf_counter()
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as launcher:

        def wait_for_the_end() -> None:
            launcher.wait()
            ended.append(time.perf_counter())

        assert launcher.stdout is not None
        application = ""
        for line in launcher.stdout:
            if line.startswith(b"DL App ID = "):
                known = time.perf_counter()
                application = line.split()[-1].decode()
                break
        if not application:
            raise SystemExit("Error: dlapp-launcher printed no DL App ID")
        waiter = threading.Thread(target=wait_for_the_end, name="bench-launcher-end")
        waiter.start()
        home = next(Path(environment["DLAPP_LOCAL_STATE_DIR"]).glob(f"*/applications/{application}"))
        first = first_line_at(home / "containers", known + DEADLINE_S)
        waiter.join()
    command(environment, "dlapp-logs", "-f", application)  # the next one starts on an idle engine
    return known - began, ended[0] - began, first - known


def first_line_at(containers: Path, deadline: float) -> float:
    """Return when a stdout file in ``containers`` first has a whole line (`time.perf_counter`), to within 1 ms."""
    while (now := time.perf_counter()) < deadline:
        try:
            with os.scandir(containers) as entries:
                paths = [entry.path + "/stdout" for entry in entries]
        except FileNotFoundError:
            paths = []
        for path in paths:
            try:
                with open(path, "rb") as file:
                    if b"\n" in file.read(4096):
                        return now
            except OSError:
                continue
        time.sleep(0.0003)  # the two cores are the application's, not ours
    raise SystemExit(f"Error: no payload in {containers} wrote a line")


def copy_of_digits(root: Path) -> Path:
    """A copy of the example, so that its results land there; the path of its properties file."""
    target = root / "digits"
    shutil.copytree(DIGITS, target, ignore=shutil.ignore_patterns("results*", "__pycache__"))
    return target / "dl_app.properties"
