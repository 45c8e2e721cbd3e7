"""Many submissions at once: from long-lived Python clients, and by sbatch.

python -m bench._submit_load WORKSPACE COUNT    a client: says "ready", submits at a line of its input, says "done"
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from bench import Row, alternately, median_ratio
from bench._slurm import controller, lacking
from bench._throwaway import command, wait_until_nothing_runs_in

SUBMISSIONS, CLIENTS, ROUNDS = 1000, 8, 3
ROOT = Path(__file__).parents[1]
SCRIPT = "#!/bin/sh\nexec sleep 600\n"


def submit_load(root: Path, environment: dict[str, str]) -> Row:
    """Submissions a second that wait behind one that has all memory, against those of sbatch to a controller without
    nodes."""
    if missing := lacking():
        raise SystemExit(f"Error: submit-load cannot be measured here: {missing}")
    workspace = root / "load"
    workspace.mkdir()
    (workspace / "run.sh").write_text(SCRIPT)
    (workspace / "run.sh").chmod(0o755)
    rounds = iter(range(ROUNDS + 1))
    with controller(root / "slurm") as slurm:
        ours, theirs = alternately(
            [
                lambda: _ours_s(root / f"load-{next(rounds)}", environment, workspace),
                lambda: _theirs_s(slurm, workspace / "run.sh"),
            ],
            ROUNDS,
        )
    return Row(
        name="submit-load",
        ratio=median_ratio(theirs, ours),
        goal=0.5,
        better="higher",
        conditions={
            "per_s": SUBMISSIONS / sorted(ours)[len(ours) // 2],
            "sbatch_per_s": SUBMISSIONS / sorted(theirs)[len(theirs) // 2],
            "submissions": SUBMISSIONS,
            "clients": CLIENTS,
            "runs": ROUNDS,
        },
    )


def _ours_s(state: Path, environment: dict[str, str], workspace: Path) -> float:
    """Submit to an empty queue, which nothing leaves meanwhile. Return the time [s]."""
    own = environment | {"DLAPP_LOCAL_STATE_DIR": str(state), "DLAPP_LOCAL_MEMORY": "64m"}
    with _Client(own, workspace, 1) as first:
        first.go()
        first.wait()
    each, rest = divmod(SUBMISSIONS, CLIENTS)
    clients = [_Client(own, workspace, each + (number < rest)) for number in range(CLIENTS)]
    try:
        began = time.perf_counter()
        for one in clients:
            one.go()
        for one in clients:
            one.wait()
        taken_s = time.perf_counter() - began
    finally:
        for one in clients:
            one.close()
    _check_and_empty(state)
    command(own, "dlapp-kill", "1")
    wait_until_nothing_runs_in(state)
    return taken_s


class _Client:
    """A process with a client that is ready to submit."""

    def __init__(self, environment: dict[str, str], workspace: Path, count: int) -> None:
        argv = [sys.executable, "-m", "bench._submit_load", str(workspace), str(count)]
        self._process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._expect("ready")

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        self._expect("done")

    def close(self) -> None:
        self._process.communicate()

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        if (said := self._process.stdout.readline().strip()) != word:
            raise SystemExit(f"Error: a client said {said!r}, not {word}")


def _check_and_empty(state: Path) -> None:
    """Check that all are in the queue, and take them out."""
    home = next(one.parent for one in state.glob("*/dlapp.db"))
    with closing(sqlite3.connect(home / "dlapp.db", timeout=60)) as database:
        (waiting,) = database.execute("SELECT count(*) FROM applications WHERE state = 'waiting'").fetchone()
        if waiting != SUBMISSIONS:
            raise SystemExit(f"Error: {waiting} applications wait, not {SUBMISSIONS}")
        database.execute("UPDATE applications SET state = 'done' WHERE state = 'waiting'")
        database.commit()


def _theirs_s(environment: dict[str, str], script: Path) -> float:
    """Submit by as many shells at once. Return the time [s]."""
    each, rest = divmod(SUBMISSIONS, CLIENTS)
    loop = 'for _ in $(seq "$1"); do sbatch --quiet --output=/dev/null "$2" || exit 1; done'
    began = time.perf_counter()
    shells = [
        subprocess.Popen(
            ["sh", "-c", loop, "sh", str(each + (number < rest)), str(script)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for number in range(CLIENTS)
    ]
    codes = [one.wait() for one in shells]
    taken_s = time.perf_counter() - began
    if any(codes):
        raise SystemExit("Error: sbatch failed")
    return taken_s


def main(workspace: str, count: str) -> None:
    """Be a client."""
    import dlapp

    with dlapp.Client() as client:
        client.list()
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(int(count)):
            client.submit(workspace=workspace, script="run.sh", memory="64m", gcores=0)
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
