"""dlapp-shell from the start of the command to its prompt, over a whole run of a program that ends at once.

Both start an application on this machine, without Docker. The shell opens a stream in addition, the run waits for the
end of its application.
"""

from __future__ import annotations

import os
import pty
import select
import time
from pathlib import Path
from statistics import median

from bench import Row, alternately, median_ratio
from bench._throwaway import COMMANDS, DEADLINE_S, own_state, whole_process_s
from tests.applications import properties

ROUNDS = int(os.environ.get("DLAPP_BENCH_ROUNDS", "15"))
PROMPT = b"(dlapp) "


def row() -> Row:
    """Measure it."""
    with own_state() as (root, env):
        file = properties(root, "true")
        run = [str(COMMANDS / "dlapp-launcher"), "--wait", str(file)]
        taken = alternately([lambda: _prompt_s(env, file), lambda: whole_process_s(env, run)], ROUNDS)
    return Row(
        name="shell",
        ratio=median_ratio(*taken),
        goal=1.5,
        better="lower",
        conditions={"rounds": ROUNDS, "prompt_s": median(taken[0]), "run_s": median(taken[1])},
    )


def _prompt_s(env: dict[str, str], file: Path) -> float:
    """Return the time from the start of dlapp-shell to its prompt [s]. Raises SystemExit: it did not come."""
    began, shown = time.perf_counter(), b""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.execve(COMMANDS / "dlapp-shell", ["dlapp-shell", str(file)], {**env, "TERM": "dumb"})
        finally:
            os._exit(127)
    while PROMPT not in shown:
        if not select.select([terminal], [], [], DEADLINE_S)[0] or not (data := _read(terminal)):
            raise SystemExit(f"Error: dlapp-shell has no prompt: {shown.decode(errors='replace')}")
        shown += data
    taken = time.perf_counter() - began
    os.write(terminal, b"exit 0\n")
    while _read(terminal):
        pass
    os.close(terminal)
    os.waitpid(pid, 0)
    return taken


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the last process that had it open has ended
        return b""
