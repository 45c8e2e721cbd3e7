"""Whole applications on the embedded engine, killed in every way: nothing is left or half, the rest goes on."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.control import TOOLS, derive_token
from dlapp.control_http import ControlConnection
from dlapp.errors import Denied
from tests.applications import (
    BIN,
    application_dir,
    ended,
    launch,
    processes,
    properties,
    run,
    status,
    wait_for,
)

FULL = os.environ.get("DLAPP_FAULTS") == "full"
OUTPUT = {"output_path": "output", "hdfs": "result", "overwrite": "true"}
SLEEPER = "echo up; mkdir -p output; echo new > output/a; echo new > output/b; setsid sleep 300 & exec sleep 300"
WRITER = "mkdir -p output; echo new > output/a; echo new > output/b; sleep 0.1"


@pytest.fixture
def directory(tmp_path: Path, state_dir: Path) -> Iterator[Path]:
    """Where the test's files are; afterwards nothing of its applications may be running."""
    yield tmp_path
    for application in state_dir.glob("*/applications/application_*"):
        run("dlapp-kill", application.name)
    wait_for("the end of all processes", lambda: not processes(state_dir))


def old_output(directory: Path) -> Path:
    target = directory / "result"
    target.mkdir()
    (target / "a").write_text("old\n")
    (target / "b").write_text("old\n")
    return target


def content(target: Path) -> dict[str, str]:
    return {str(p.relative_to(target)): p.read_text() for p in sorted(target.rglob("*")) if p.is_file()}


def is_running(application: str) -> bool:
    return any(one["phase"] == "running" for one in status(application)["containers"])


def kill(state_dir: Path, *roles: str) -> None:
    """SIGKILL everything of these roles at once."""
    victims = [one.pid for one in processes(state_dir) if one.role in roles]
    assert victims
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


EVERYTHING = ("runner", "am", "task", "payload")
KILLS = [("am",), ("task",), ("am", "task"), ("runner", "am"), ("runner", "am", "task"), EVERYTHING]


@pytest.mark.parametrize("victims", KILLS, ids="+".join)
def test_what_is_killed_is_failed_with_a_reason_and_leaves_nothing_and_the_queue_goes_on(
    victims: tuple[str, ...], directory: Path, state_dir: Path
) -> None:
    target = old_output(directory)
    one_at_a_time = {"DLAPP_LOCAL_VCORES": "1"}
    first = launch(properties(directory, SLEEPER, name="first", to_hdfs=OUTPUT), **one_at_a_time)
    second = launch(properties(directory, "echo second", name="second"), **one_at_a_time)
    wait_for("its payload", lambda: is_running(first))
    assert status(second)["state"] == "ACCEPTED"
    kill(state_dir, *victims)
    seen = wait_for("FAILED", lambda: (s := status(first))["state"] in ("FAILED", "FINISHED") and s, 10)
    assert seen["final_status"] == "FAILED"
    assert seen["diagnostics"]
    assert ended(second)["final_status"] == "SUCCEEDED"
    wait_for("no process of it", lambda: not processes(application_dir(state_dir, first)))
    assert content(target) == {"a": "old\n", "b": "old\n"}


def test_a_killed_runner_is_no_matter_for_what_runs_and_the_next_command_starts_another(
    directory: Path, state_dir: Path
) -> None:
    one_at_a_time = {"DLAPP_LOCAL_VCORES": "1"}
    flag = directory / "go"
    wait = f"until [ -e {flag} ]; do sleep 0.05; done"
    first = launch(properties(directory, wait, name="first"), **one_at_a_time)
    second = launch(properties(directory, "echo second", name="second"), **one_at_a_time)
    wait_for("its payload", lambda: is_running(first))
    kill(state_dir, "runner")
    flag.touch()
    assert ended(first)["final_status"] == "SUCCEEDED"
    assert ended(second)["final_status"] == "SUCCEEDED"


def test_killed_at_any_moment_the_output_is_the_old_or_the_new_and_the_state_says_which(
    directory: Path, state_dir: Path
) -> None:
    seed = int(os.environ.get("DLAPP_SEED", time.time_ns() % 1_000_000))
    print(f"DLAPP_SEED={seed}")
    chance = random.Random(seed)
    for round_ in range(40 if FULL else 6):
        target = directory / "result"
        shutil.rmtree(target, ignore_errors=True)
        old_output(directory)
        application = launch(properties(directory, WRITER, name="writer", to_hdfs=OUTPUT))
        time.sleep(chance.uniform(0, 0.7))
        victims = chance.choice([("am",), ("runner", "am"), EVERYTHING])
        with contextlib.suppress(AssertionError):  # it may have ended already
            kill(state_dir, *victims)
        end = ended(application)
        where = f"seed {seed}, round {round_}, killed {victims}: {end['diagnostics']}"
        wait_for(f"no process of it; {where}", lambda a=application: not processes(application_dir(state_dir, a)))
        wanted = "new\n" if end["final_status"] == "SUCCEEDED" else "old\n"
        assert content(target) == {"a": wanted, "b": wanted}, where
        wait_for(
            f"what lay beside the target is gone; {where}",
            lambda: {p.name.rpartition(".")[2] for p in directory.glob("result.*")} <= {"partial"},
        )
        for partial in directory.glob("result.*.partial"):
            assert set(content(partial).values()) <= {"new\n"}, where
            shutil.rmtree(partial)


def test_closing_the_terminal_changes_nothing_for_what_runs(directory: Path) -> None:
    file = properties(directory, "sleep 1; echo done", name="slow")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(BIN / "dlapp-launcher", ["dlapp-launcher", "--wait", str(file)])
    text = b""
    while b"DL App ID = application_" not in text or not text.partition(b"DL App ID = ")[2].count(b"\n"):
        text += os.read(terminal, 4096)
    application = text.partition(b"DL App ID = ")[2].split()[0].decode()
    wait_for("its payload", lambda: is_running(application))
    os.close(terminal)  # the session's processes get SIGHUP
    os.waitpid(pid, 0)
    assert ended(application)["final_status"] == "SUCCEEDED"


def test_sigkill_of_the_waiting_launcher_changes_nothing_for_what_runs(directory: Path) -> None:
    file = properties(directory, "sleep 1; echo done", name="slow")
    waiting = subprocess.Popen([BIN / "dlapp-launcher", "--wait", file], stdout=subprocess.PIPE, text=True)
    assert waiting.stdout is not None
    with waiting.stdout:
        application = next(line for line in waiting.stdout if line.startswith("DL App ID =")).split()[-1]
        waiting.kill()
    waiting.wait()
    assert ended(application)["final_status"] == "SUCCEEDED"


def test_a_wrong_or_missing_token_gets_401_and_changes_nothing(directory: Path, state_dir: Path) -> None:
    application = launch(properties(directory, SLEEPER, name="guarded"))
    wait_for("its payload", lambda: is_running(application))
    home = application_dir(state_dir, application)
    url = json.loads((home / "am.json").read_text())["control_url"]
    secret = json.loads((home / "secrets.json").read_text())["control_secret"]
    (container,) = [one["container_id"] for one in status(application)["containers"]]
    before = status(application)
    for token in (None, "", "wrong", derive_token(secret, "another purpose"), derive_token(secret, container)):
        with ControlConnection(url, token) as connection:
            for method, path in (("GET", "/v1/view"), ("POST", "/v1/softkill"), ("POST", "/v1/kill")):
                with pytest.raises(Denied):
                    connection.call(method, path, {"user": "mallory"} if method == "POST" else None)
    with ControlConnection(url, derive_token(secret, TOOLS)) as connection:
        for word in ("hello", "report"):
            with pytest.raises(Denied):
                connection.call("POST", f"/v1/tasks/{container}/{word}", {})
        assert connection.call("GET", "/v1/view")["application_id"] == application
    assert status(application)["containers"] == before["containers"]
    assert secret not in json.dumps(before)


def test_only_who_may_read_the_secrets_finds_the_page(directory: Path, state_dir: Path) -> None:
    application = launch(properties(directory, SLEEPER, name="looked at"))
    wait_for("its payload", lambda: is_running(application))
    url = json.loads((application_dir(state_dir, application) / "am.json").read_text())["control_url"]
    for path in ("/", "/page/", f"/{'0' * 32}/"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url + path, timeout=30)
    page = status(application)["tracking_url"]
    assert page.startswith(url)
    with urllib.request.urlopen(page, timeout=30) as answer:
        assert "looked at" in answer.read().decode()


def test_many_submissions_at_once_all_run_each_exactly_once(directory: Path) -> None:
    count = 200 if FULL else 24
    witness = directory / "witness"
    witness.mkdir()
    file = properties(directory, f"mkdir {witness}/$DLAPP_APP_ID", name="one")
    started = [
        subprocess.Popen([BIN / "dlapp-launcher", file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(8)
    ]
    ids, left = [], count - len(started)
    while started:
        done = started.pop(0)
        out, _ = done.communicate()
        assert done.returncode == 0, out
        ids += [line.split()[-1] for line in out.splitlines() if line.startswith("DL App ID =")]
        if left:
            left -= 1
            started.append(
                subprocess.Popen(
                    [BIN / "dlapp-launcher", file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
    assert len(set(ids)) == count
    for application in ids:
        assert ended(application, 300)["final_status"] == "SUCCEEDED", status(application)
    assert sorted(p.name for p in witness.iterdir()) == sorted(ids)


def test_of_a_failed_run_what_every_container_had_is_kept_aside(directory: Path) -> None:
    script = (
        "mkdir output; echo $CONTAINER_INDEX > output/x; [ $CONTAINER_INDEX != 0 ] || { sleep 0.5; exit 3; }; sleep 300"
    )
    file = properties(directory, script, resources={"containers": 3}, to_hdfs=OUTPUT)
    end = ended(launch(file))
    assert end["diagnostics"] == "container 0 (worker 0) failed: exit code 3"
    assert content(Path(end["outputs"][0]["partial"].removeprefix("file://"))) == {f"{n}/x": f"{n}\n" for n in range(3)}


def test_a_low_limit_of_open_files_is_raised_for_us_and_kept_for_the_payload(directory: Path) -> None:
    file = properties(directory, "ulimit -Sn; sleep 1", resources={"containers": 40, "memory": 1, "vcores": 1})
    done = subprocess.run(
        ["sh", "-c", f"ulimit -Sn 64; exec {BIN}/dlapp-launcher --wait {file}"],
        capture_output=True,
        text=True,
        env={**os.environ, "DLAPP_LOCAL_VCORES": "100"},
    )
    assert done.returncode == 0, done.stderr
    logs = run("dlapp-logs", "last").out.splitlines()
    assert [line.partition("] ")[2] for line in logs] == ["64"] * 40


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_under_the_state_costs_what_is_shown_and_not_the_application(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = directory / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", small], check=True)
    try:
        monkeypatch.setenv("DLAPP_LOCAL_STATE_DIR", str(small / "state"))
        fill = "dd if=/dev/zero of=big bs=1M count=20 2>/dev/null; sleep 1; rm big"
        script = f"mkdir output; echo good > output/x; {fill}"
        end = ended(launch(properties(directory, script, to_hdfs=OUTPUT)))
        assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
        assert content(directory / "result") == {"x": "good\n"}
    finally:
        wait_for("the end of all processes", lambda: not processes(small))
        subprocess.run(["umount", small], check=True)
