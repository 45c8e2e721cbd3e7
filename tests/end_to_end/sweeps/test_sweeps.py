"""Sweeps as whole applications: each trial's result exactly once, where it belongs, whoever is killed meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.applications import application_dir, ended, launch, processes, properties, run, status, wait_for
from tests.engines import Engine, on_yarn_when_full
from tests.seeds import each_seed
from tests.services.containers.dockerd import IMAGE, Dockerd
from tests.tiers import FULL

SCRIPT = """
echo "trial $DLAPP_TRIAL: $*, $RATE, $(cat input/words)"
echo changed >>own; test "$(cat own)" = "as packed
changed" || exit 7
mkdir -p output
echo "$RATE $SIZE" >output/found
echo '{"metrics": {"accuracy": 0.'$RATE$SIZE'}, "step": 1}' >>"$DLAPP_REPORT"
"""


def results_of(application: str) -> list[dict[str, object]]:
    done = run("dlapp-sweep", application, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    return list(found["trials"] if isinstance(found, dict) else found)


def test_each_trial_has_its_own_workspace_and_its_output_is_committed_once(engine: Engine, tmp_path: Path) -> None:
    data = engine.put("data/words", "of input\n")
    engine.put("result/trials/0/old", "of a run before\n")
    fails = 'test "$RATE$SIZE" = 25 && exit 9\nexit 0\n'
    file = properties(
        tmp_path,
        SCRIPT + fails,
        application={"user_shell_args": "--rate={RATE} --number={trial}"},
        resources={"containers": 2},
        sweep={
            "grid.RATE": "1, 2",
            "grid.SIZE": "4, 5, 6",
            "metric": "accuracy",
            "goal": "max",
            "retries": 1,
            "trials_per_container": 2,
        },
        from_hdfs={"hdfs": data, "input_path": "input"},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/result", "overwrite": "true"},
    )
    (tmp_path / "test_workspace" / "own").write_text("as packed\n")
    application = launch(file)
    end = ended(application)
    assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
    assert end["diagnostics"].startswith("1 of 6 trials failed (trial 4): exit code 9")
    assert end["trials"] == 6
    assert f"next : dlapp-sweep {application}" in run("dlapp-status", application).out.splitlines()
    assert end["receipt"]["bytes"]["output"] >= 5 * len("1 4\n")
    found = {name: text.split() for name, text in engine.tree("result/trials").items()}
    values = [(rate, size) for rate in "12" for size in "456"]
    assert found == {f"{n}/found": list(values[n]) for n in range(6) if n != 4}
    trials = {int(str(trial["trial"])): trial for trial in results_of(application)}
    assert {number: (one["state"], one["tries"]) for number, one in trials.items()} == {
        **dict.fromkeys(range(6), ("done", 1)),
        4: ("failed", 2),
    }
    assert trials[5]["metric"] == 0.26
    best = run("dlapp-sweep", application, "--best")
    assert "DLAPP_TRIAL=5" in best.out
    printed = run("dlapp-logs", application, "--trial", "3", "--stdout", timeout_s=120)
    assert printed.out == "trial 3: --rate=2 --number=3, 2, of input\n", printed.err


@pytest.mark.slow
@on_yarn_when_full
def test_a_sweep_continues_with_more_trials_and_keeps_earlier_output(engine: Engine, tmp_path: Path) -> None:
    script = 'test "$N" != 2 || test -e mended || exit 3\nmkdir -p output; echo "$N $DLAPP_APP_ID" >output/found'
    file = properties(
        tmp_path,
        script,
        sweep={"grid.N": "1, 2, 3", "max_failures": 0},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/result"},
    )
    first = launch(file)
    end = ended(first)
    assert end["final_status"] == "FAILED"
    assert end["diagnostics"].startswith("more trials failed than max_failures=0 allows: 1 of ")
    (tmp_path / "test_workspace" / "mended").touch()
    done = run("dlapp-launcher", "--resume", first, "--set", "sweep.grid.N=1, 2, 3, 4", "--wait", file, timeout_s=120)
    assert done.code == 0, done.err
    second = next(line.partition(" = ")[2] for line in done.out.splitlines() if line.startswith("DL App ID"))
    found = {name: text.split() for name, text in engine.tree("result/trials").items()}
    assert found["0/found"] == ["1", first]
    assert [found[f"{n}/found"][0] for n in range(4)] == ["1", "2", "3", "4"]
    assert found["3/found"] == ["4", second]
    assert [(trial["trial"], trial["state"]) for trial in results_of(second)] == [(n, "done") for n in range(4)]
    changed = run("dlapp-launcher", "--resume", second, "--set", "sweep.grid.N=7, 2, 3, 4", file)
    assert changed.code == 2
    assert f"trial 0 has other parameters than in {second}" in changed.err


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_a_finished_trial_is_committed_once_also_after_a_resume(engine: Engine, tmp_path: Path) -> None:
    waits = f'test "$N" != 2 || until test -e {tmp_path}/go; do sleep 0.1; done'
    file = properties(
        tmp_path,
        f'mkdir -p output; echo "$N $DLAPP_APP_ID" >output/found\n{waits}',
        sweep={"grid.N": "1, 2, 3", "commit": "trial"},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/result"},
    )
    first = launch(file)
    wait_for("the output of trial 0", lambda: "0" in trials_in_target(engine), timeout_s=240)
    run("dlapp-kill", first)
    end = ended(first)
    assert end["final_status"] == "KILLED"
    assert "the output of 1 trial is committed in " in end["diagnostics"]
    assert engine.names("result/trials") == ["0"]
    assert engine.beside("result/trials") == []
    number = os.stat(f"{engine.root}/result/trials/0").st_ino
    (tmp_path / "go").touch()
    done = run("dlapp-launcher", "--resume", first, "--wait", file, timeout_s=240)
    assert done.code == 0, done.err
    second = next(line.partition(" = ")[2] for line in done.out.splitlines() if line.startswith("DL App ID"))
    found = {name: text.split() for name, text in engine.tree("result/trials").items()}
    assert found == {"0/found": ["1", first], "1/found": ["2", second], "2/found": ["3", second]}
    assert os.stat(f"{engine.root}/result/trials/0").st_ino == number
    assert [(trial["trial"], trial["state"]) for trial in results_of(second)] == [(n, "done") for n in range(3)]


@pytest.mark.slow
@each_seed("sweep")
@pytest.mark.parametrize("commit", ["end", "trial"])
def test_killed_at_random_no_trial_is_lost_and_none_runs_again(
    seed: int, commit: str, state_dir: Path, tmp_path: Path
) -> None:
    """Run 12 trials and kill four processes; at night 60 trials and eight. `make soak NAME=sweep` has 300 and 30."""
    chance, trials, kills = random.Random(f"sweep {seed}"), 60 if FULL else 12, 8 if FULL else 4
    last_ones = trials - 2  # which run until all have been killed
    runs = tmp_path / "runs"
    runs.mkdir()
    script = (
        f'echo x >>{runs}/$DLAPP_TRIAL; sleep 0.3; mkdir -p output; echo "$N" >output/found\n'
        f'test "$N" -lt {last_ones} || until test -e {tmp_path}/go; do sleep 0.05; done\n'
        'echo \'{"metrics": {"loss": \'$N\'}}\' >>"$DLAPP_REPORT"'
    )
    file = properties(
        tmp_path,
        script,
        resources={"containers": 2},
        sweep={"grid.N": ", ".join(map(str, range(trials))), "metric": "loss", "goal": "min", "commit": commit},
        to_hdfs={"output_path": "output", "hdfs": f"{tmp_path}/result"},
    )
    application = launch(file, DLAPP_LOCAL_AM_ATTEMPTS=str(kills + 1))
    home = application_dir(state_dir, application)
    committed: dict[str, int] = {}
    for victim in chance.sample(["task", "am", "runner", "task"] * (kills // 4), kills):
        before = ended_trials(home)

        def another(before: frozenset[int] = frozenset(before)) -> bool:
            status(application)  # a command starts a runner, where that was killed
            now = ended_trials(home)
            return bool(now - before) or len(now) == last_ones

        wait_for("another trial", another)
        time.sleep(chance.uniform(0, 0.2))
        finished = {number: (runs / str(number)).read_text() for number in ended_trials(home)}
        committed |= committed_trials(tmp_path)
        kill_one(state_dir, victim, chance)
    if commit == "trial":
        wait_for("a trial that is committed", lambda: status(application) and committed_trials(tmp_path))
    committed |= committed_trials(tmp_path)
    (tmp_path / "go").touch()
    end = ended(application)
    assert end["final_status"] == "SUCCEEDED", f"seed {seed}: {end['diagnostics']}"
    again = {number: text for number, text in finished.items() if (runs / str(number)).read_text() != text}
    assert not again, f"seed {seed}: trials ran again that had ended"
    found = {path.parent.name: path.read_text().strip() for path in (tmp_path / "result" / "trials").glob("*/found")}
    assert found == {str(n): str(n) for n in range(trials)}, f"seed {seed}"
    assert bool(committed) == (commit == "trial")
    last = committed_trials(tmp_path)
    assert last == last | committed, f"seed {seed}: trials were committed again"
    assert sorted(os.listdir(tmp_path / "result")) == ["trials"]
    assert len(os.listdir(tmp_path / "result" / "trials")) == trials
    assert [(trial["trial"], trial["state"]) for trial in results_of(application)] == [
        (n, "done") for n in range(trials)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
def test_on_yarn_each_result_counts_once_after_killed_processes(engine: Engine, tmp_path: Path) -> None:
    (runs := tmp_path / "runs").mkdir()
    file = properties(
        tmp_path,
        f'echo x >>{runs}/$DLAPP_TRIAL; mkdir -p output; echo "$N" >output/found\n'
        f'test "$N" -lt 4 || until test -e {tmp_path}/go; do sleep 0.1; done\n'
        'echo \'{"metrics": {"loss": \'$N\'}}\' >>"$DLAPP_REPORT"',
        resources={"containers": 2},
        sweep={"grid.N": "0, 1, 2, 3, 4, 5, 6, 7", "metric": "loss", "goal": "min", "commit": "trial"},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/result"},
    )
    application = launch(file)

    finished: dict[str, str] = {}  # trials that were committed at a kill, and what they had written by then

    def both_run(attempt: int) -> bool:
        now = status(application)
        return now["attempt"] == attempt and [container["phase"] for container in now["containers"]] == ["running"] * 2

    def kill(role: str) -> None:
        finished.update({name: (runs / name).read_text() for name in trials_in_target(engine)})
        found = [process.pid for process in engine.processes(application) if process.role == role]
        assert found
        os.kill(found[0], signal.SIGKILL)

    wait_for("a trial that is committed", lambda: trials_in_target(engine), timeout_s=240)
    kill("am")
    wait_for("all that do not wait", lambda: trials_in_target(engine) >= set("0123"), timeout_s=240)
    wait_for("two that wait", lambda: {path.name for path in runs.iterdir()} >= set("012345"), timeout_s=240)
    # Containers that the ResourceManager had not yet seen running at the first kill ended with that ApplicationMaster.
    wait_for("both under the next master", lambda: both_run(attempt=2), timeout_s=240)
    kill("task")
    (tmp_path / "go").touch()
    end = ended(application, timeout_s=240)
    assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
    found = {name: text.strip() for name, text in engine.tree("result/trials").items()}
    assert found == {f"{n}/found": str(n) for n in range(8)}
    assert [(trial["trial"], trial["state"], trial["metric"]) for trial in results_of(application)] == [
        (n, "done", n) for n in range(8)
    ]
    assert len(finished) >= 4
    assert {name: (runs / name).read_text() for name in finished} == finished, "trials ran again that were committed"


def trials_in_target(engine: Engine) -> set[str]:
    """Return the numbers of the trials that are committed."""
    with contextlib.suppress(FileNotFoundError):
        return {name for name in engine.names("result/trials") if name.isdigit()}
    return set()


def committed_trials(directory: Path) -> dict[str, int]:
    """Return the trials in the target, each with the inode number of its directory."""
    found = [path for path in directory.glob("result/trials/*") if path.name.isdigit()]  # others are being committed
    return {item.name: item.stat().st_ino for item in found}


def ended_trials(home: Path) -> set[int]:
    """Return the trials whose end is in the journal."""
    found = set()
    for journal in home.glob("journal-*.jsonl"):
        for line in journal.read_text().splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if record["kind"] == "trial_end":
                    found.add(int(record["number"]))
    return found


def kill_one(state_dir: Path, role: str, chance: random.Random) -> None:
    found = [process.pid for process in processes(state_dir) if process.role == role]
    if found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(found), signal.SIGKILL)


@pytest.mark.docker
@pytest.mark.slow
def test_in_docker_each_trial_has_a_container_of_its_own_and_input_cannot_be_written(
    dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_CLUSTER", "local")
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_NETWORK", "none")
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a").write_text("of input\n")
    script = (
        "cat input/words/a; echo x >input/words/a && echo written; test -e /tmp/mine && echo foreign; touch /tmp/mine\n"
        'mkdir output; hostname >output/host; echo "$N$1" >output/found; test "$N" != 2'
    )
    file = properties(
        tmp_path,
        script,
        application={"docker_image": IMAGE, "user_shell_args": "{N}"},
        sweep={"grid.N": "1, 2, 3", "trials_per_container": 2},
        from_hdfs={"hdfs": f"{tmp_path}/words", "input_path": "input"},
        to_hdfs={"output_path": "output", "hdfs": f"{tmp_path}/result"},
    )
    application = launch(file)
    end = ended(application)
    assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
    assert end["diagnostics"] == "1 of 3 trials failed (trial 1): exit code 1"
    found = {path.parent.name: path.read_text() for path in (tmp_path / "result" / "trials").glob("*/found")}
    assert found == {"0": "11\n", "2": "33\n"}
    assert len({path.read_text() for path in (tmp_path / "result" / "trials").glob("*/host")}) == 2
    assert run("dlapp-logs", application, "--trial", "2", "--stdout").out == "of input\n"
