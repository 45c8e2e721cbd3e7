"""The 300 trials of examples/sweep, with processes killed 30 times; a round for each sampler.

On the embedded engine tasks, ApplicationMasters, the runner, and all of them together are killed, as with a machine
that loses power; on YARN tasks, ApplicationMasters, both, and NodeManagers, which start again without recovery. Then
the sweep may have failed, and goes on by ``--resume``. A round ends when all trials have: each has one output, the best
trial is that of a run without kills, and no trial has run again whose end was in a journal (on YARN, whose output was
committed).
"""

from __future__ import annotations

import contextlib
import csv
import getpass
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.applications import BIN, processes
from tests.engines import Engine
from tests.services.hadoop import NODES, Hadoop
from tests.soak.problem import Problem

EXAMPLE = Path(__file__).parents[2] / "examples" / "sweep"
DATA = EXAMPLE.parent / "digits" / "data" / "digits.csv.gz"
RATES, SIZES, BATCHES = "0.01 0.02 0.05 0.1 0.2 0.3 0.5 0.7 1.0 2.0", "8 16 32 64 128", "8 16 32 64 128 256"
VICTIMS = (("task",), ("task",), ("am",), ("runner",), ("task", "am"), ("task", "am", "runner"))
VICTIMS_ON_YARN = (("task",), ("task",), ("am",), ("task", "am"), ("node",))
TRIALS, TRIALS_OF_A_KILL, END_S = 300, 10, 3600.0
SAMPLERS = ("grid", "random", "list")


def rounds(
    seconds: float, seed: int, engine: str = "local", trials: int = TRIALS, sampler: str | None = None
) -> Iterator[str]:
    """Run a sweep of each sampler in turn, until the time is over; at least one.

    Args:
        seconds, seed: as of all soaks.
        engine: ``local`` or ``yarn``.
        trials: of a sweep, a multiple of 50.
        sampler: of all sweeps; None: each in turn, from the one that the seed chooses.

    Raises:
        Problem: an output is missing, or there are two; the best trial is another one; a trial ran again.
    """
    chance, began, number = random.Random(seed), time.monotonic(), 0
    with Hadoop.start() if engine == "yarn" else contextlib.nullcontext() as hadoop:
        while not number or time.monotonic() - began < seconds:
            with tempfile.TemporaryDirectory(prefix="dlapp-soak-") as directory:
                place = _Place(Path(directory), sampler or SAMPLERS[(seed + number) % len(SAMPLERS)], trials, hadoop)
                try:
                    yield f"{place.sampler}: {_round(place, chance)}"
                finally:
                    place.close()
            number += 1


def _round(place: _Place, chance: random.Random) -> str:
    sampler, most = place.sampler, place.trials // TRIALS_OF_A_KILL
    undisturbed = place.run_to_end("undisturbed")
    place.clear_runs()
    application, before, kills, resumes = place.launch("disturbed"), "", 0, 0
    deadline = time.monotonic() + END_S
    counted: dict[int, int] = {}  # how often each trial had run when its end was first seen in a journal
    while True:
        if time.monotonic() > deadline:
            raise Problem(f"{sampler}: {application} has not ended after {END_S:g} s")
        counted = place.runs_of_ended() | counted
        if again := {n: place.runs(n) - count for n, count in counted.items() if place.runs(n) != count}:
            raise Problem(f"{sampler}: trials that had ended ran again: {again}, in {application}, {place.keep()}")
        state = place.state(application)
        if state == "FINISHED":
            break
        if state in ("FAILED", "KILLED"):
            resumes += 1
            try:
                before, application = application, place.launch("disturbed", resume=application)
            except Problem as problem:
                # On YARN its ApplicationMasters were killed before one of them had written what was submitted.
                if not before or "submission.json is not there" not in str(problem):
                    raise
                application = place.launch("disturbed", resume=before)
            continue
        if kills < most and chance.random() < 0.7:
            kills += place.kill(application, chance)
        time.sleep(chance.uniform(0.2, 2.0))
    place.check_outputs("disturbed")
    best = place.best(application)
    if best != undisturbed:
        raise Problem(f"{sampler}: the best is {best}, without kills {undisturbed}")
    if kills < most:
        raise Problem(f"{sampler}: all ended after {kills} kills of {most}")
    runs = sum(place.runs(n) for n in range(place.trials))
    return f"{place.trials} trials, {kills} kills, {resumes} resumes, {runs} runs; best {best}"


class _Place:
    """A directory with the example's workspace, and the engine that runs its sweeps.

    Args:
        root: the directory.
        sampler: of the sweeps.
        trials: of a sweep.
        hadoop: the cluster; None: the embedded engine runs them.
    """

    def __init__(self, root: Path, sampler: str, trials: int, hadoop: Hadoop | None) -> None:
        self.root, self.sampler, self.trials, self._hadoop = root, sampler, trials, hadoop
        self._engine = Engine(root, root / "state", hadoop)
        self._batches = BATCHES.split()[: trials // (len(RATES.split()) * len(SIZES.split()))]
        self._env = {
            **{key: text for key, text in os.environ.items() if not key.startswith(("DLAPP_", "XDG_"))},
            "HOME": str(root),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "DLAPP_LOCAL_STATE_DIR": str(root / "state"),
            "DLAPP_GPUID_LOCK_DIR": str(root / "gpus"),
            "DLAPP_LOCAL_AM_ATTEMPTS": "3",
            "DLAPP_LOCAL_VCORES": "4",
        }
        self._data = str(root / "digits.csv.gz")
        if hadoop is not None:
            self._env |= {
                "DLAPP_CLUSTER": "yarn",
                "DLAPP_YARN_CONF_DIR": str(hadoop.configuration),
                "DLAPP_YARN_PYTHON": sys.executable,
                "HADOOP_USER_NAME": getpass.getuser(),
            }
            self._data = self._engine.put("digits.csv.gz", DATA.read_bytes())
        shutil.copytree(EXAMPLE / "workspace", root / "workspace")
        shutil.copy(DATA, root)
        (root / "runs").mkdir()
        start = root / "workspace" / "start.sh"
        start.write_text(f"#!/bin/sh\necho x >>{root}/runs/$DLAPP_TRIAL\nexec {sys.executable} train.py\n")
        start.chmod(0o755)
        with (root / "trials.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(("RATE", "HIDDEN", "BATCH"))
            table.writerows((r, h, b) for b in self._batches for h in SIZES.split() for r in RATES.split())

    def _properties(self, name: str) -> Path:
        if self.sampler == "grid":
            keys = f"grid.RATE={_listed(RATES)}\ngrid.HIDDEN={_listed(SIZES)}\ngrid.BATCH={', '.join(self._batches)}\n"
        elif self.sampler == "random":
            keys = "random.RATE=loguniform(0.01, 2)\nrandom.HIDDEN=int(8, 128)\nrandom.BATCH=choice(8, 16, 32, 64)\n"
            keys += f"trials={self.trials}\nseed=5\n"
        else:
            keys = "list=trials.csv\n"
        file = self.root / f"{name}.properties"
        file.write_text(
            "[application]\nappname=soak\nuser_dev_workspace_path=workspace\nuser_shell_script=start.sh\nenv.EPOCHS=2\n"
            "[resources]\ncontainers=2\nmemory=256\ngcores=0\n"
            f"[sweep]\n{keys}metric=accuracy\ngoal=max\n{'' if self._hadoop is None else 'commit=trial'}\n"
            f"[from_hdfs]\nhdfs={self._data}\ninput_path=data\n"
            f"[to_hdfs]\noutput_path=output\nhdfs={self._engine.root}/results/{name}\n"
        )
        return file

    def command(self, *words: str) -> str:
        done = subprocess.run(
            [BIN / words[0], *words[1:]], env=self._env, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise Problem(f"{' '.join(words)} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-1000:]}")
        return done.stdout

    def launch(self, name: str, resume: str = "") -> str:
        words = ("--resume", resume, "--env", "EPOCHS=2") if resume else (str(self._properties(name)),)
        printed = self.command("dlapp-launcher", *words)
        return next(line.partition(" = ")[2] for line in printed.splitlines() if line.startswith("DL App ID"))

    def state(self, application: str) -> str:
        return str(json.loads(self.command("dlapp-status", "--json", application))["state"])

    def run_to_end(self, name: str) -> tuple[int, float]:
        application = self.launch(name)
        while self.state(application) not in ("FINISHED", "FAILED", "KILLED"):
            time.sleep(1.0)
        self.check_outputs(name)
        return self.best(application)

    def best(self, application: str) -> tuple[int, float]:
        found: dict[str, Any] = json.loads(self.command("dlapp-sweep", "--best", "--json", application))
        return int(found["trial"]), float(found["metric"])

    def outputs(self, name: str) -> set[str]:
        """Return the trials whose output is in place."""
        with contextlib.suppress(FileNotFoundError):
            return set(self._engine.names(f"results/{name}/trials"))
        return set()

    def check_outputs(self, name: str) -> None:
        wanted, existing = set(map(str, range(self.trials))), self.outputs(name)
        if existing != wanted:
            raise Problem(f"{name}: {len(existing)} outputs of {self.trials}: missing {wanted - existing}")

    def keep(self) -> str:
        """Copy the state directory, or the logs of all containers, to where they can be looked at; return where."""
        kept_dir = tempfile.mkdtemp(prefix="dlapp-soak-kept-")
        if self._hadoop is None:
            shutil.copytree(self.root / "state", f"{kept_dir}/state", ignore_dangling_symlinks=True)
        else:
            for path in self._hadoop.directory.glob("logs-*"):
                shutil.copytree(path, f"{kept_dir}/{path.name}", ignore_dangling_symlinks=True)
        return kept_dir

    def close(self) -> None:
        """End what a round left running, as after a problem, and remove what it stored."""
        if self._hadoop is not None:
            self._engine.remove("")
            return
        while left := processes(self.root / "state"):
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.1)

    # ---- what ran ----

    def runs(self, number: int) -> int:
        with contextlib.suppress(FileNotFoundError):
            return len((self.root / "runs" / str(number)).read_text().splitlines())
        return 0

    def clear_runs(self) -> None:
        for path in (self.root / "runs").iterdir():
            path.unlink()

    def runs_of_ended(self) -> dict[int, int]:
        """Return how often each trial has run whose end is in a journal of the newest application, or is committed."""
        found = {}
        if self._hadoop is not None:
            return {int(name): self.runs(int(name)) for name in self.outputs("disturbed") if name.isdigit()}
        newest = max((self.root / "state").glob("*/applications/application_*"), key=lambda path: path.name)
        for journal in newest.glob("journal-*.jsonl"):
            for line in journal.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    record = json.loads(line)
                    if record["kind"] == "trial_end" and record["state"] == "done":
                        found[record["number"]] = self.runs(record["number"])
        return found

    def kill(self, application: str, chance: random.Random) -> bool:
        """Kill one process of each role, or a NodeManager; of three roles every process. Return if there was one."""
        roles = chance.choice(VICTIMS if self._hadoop is None else VICTIMS_ON_YARN)
        if self._hadoop is not None and roles == ("node",):
            part = chance.choice(list(NODES))
            self._hadoop.kill_part(part)
            self._hadoop.start_part(part)
            return True
        found = processes(self.root / "state") if self._hadoop is None else self._engine.processes(application)
        candidates = [item for item in found if item.role in roles]
        if len(roles) < 3:
            candidates = [
                chance.choice(same) for role in roles if (same := [item for item in candidates if item.role == role])
            ]
        for process in candidates:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return bool(candidates)


def _listed(words: str) -> str:
    return ", ".join(words.split())
