"""Whole applications, killed in every way: nothing is left or half, the rest goes on.

On every engine, where there is one ApplicationMaster for each application: of what the next one does there are tests in
cluster/yarn/test_killed_masters.py and test_killed_masters_local.py. And of the embedded engine what it alone has: its
runner, its queue, its files.
"""

from __future__ import annotations

import contextlib
import functools
import html
import json
import os
import pty
import random
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import Denied
from dlapp.net.control_client import ControlConnection
from dlapp.values.access import TOOLS, derive_token
from tests.applications import (
    BIN,
    Process,
    application_dir,
    ended,
    kill_processes,
    launch,
    processes,
    properties,
    run,
    status,
    wait_for,
)
from tests.engines import Engine, on_yarn_when_full
from tests.seeds import each_seed
from tests.tiers import FULL

OUTPUT = {"output_path": "output", "hdfs": "result", "overwrite": "true"}
SLEEPER = "echo up; mkdir -p output; echo new > output/a; echo new > output/b; setsid sleep 300 & exec sleep 300"
END_S = 120.0
WRITER = "mkdir -p output; echo new > output/a; echo new > output/b; sleep 0.1"


@pytest.fixture
def directory(tmp_path: Path, state_dir: Path) -> Iterator[Path]:
    """Return where the test's files are; afterwards nothing of its applications may be running."""
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


@pytest.fixture
def with_one_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no engine start a second ApplicationMaster."""
    monkeypatch.setenv("DLAPP_YARN_AM_ATTEMPTS", "1")
    monkeypatch.setenv("DLAPP_LOCAL_AM_ATTEMPTS", "1")


def output_of(engine: Engine) -> dict[str, str]:
    """Return what a properties file says of its output."""
    return {**OUTPUT, "hdfs": f"{engine.root}/result"}


def put_old_output(engine: Engine) -> None:
    engine.put("result/a", "old\n")
    engine.put("result/b", "old\n")


def is_running(application: str) -> bool:
    return any(container["phase"] == "running" for container in status(application)["containers"])


def is_over(engine: Engine, application: str) -> bool:
    return not engine.processes(application)


def kill(found: list[Process], *roles: str) -> None:
    """SIGKILL everything of these roles at once."""
    victims = [process.pid for process in found if process.role in roles]
    assert victims
    kill_processes(victims)


def is_tidy(engine: Engine, application: str) -> bool:
    """Look at an application that has ended, which on YARN settles it; return whether nothing is left of its commit."""
    status(application)
    return all(name.endswith(".partial") or ".replaced." in name for name in engine.beside("result"))


EVERYTHING = ("runner", "am", "task", "payload")


@pytest.mark.usefixtures("with_one_master")
@pytest.mark.parametrize("victims", [("am", "task"), *([("am",), ("task",), EVERYTHING] * FULL)], ids="+".join)
def test_a_killed_process_fails_the_application_and_keeps_the_old_output(
    victims: tuple[str, ...], engine: Engine, tmp_path: Path
) -> None:
    put_old_output(engine)
    application = launch(properties(tmp_path, SLEEPER, to_hdfs=output_of(engine)))
    wait_for("its payload", lambda: is_running(application), END_S)
    kill(engine.processes(application), *victims)
    seen = wait_for("FAILED", lambda: (s := status(application))["state"] in ("FAILED", "FINISHED") and s, END_S)
    assert seen["final_status"] == "FAILED"
    assert seen["diagnostics"]
    wait_for("no process of it", lambda: not engine.processes(application))
    assert engine.tree("result") == {"a": "old\n", "b": "old\n"}
    if engine.name == "local":
        report = application_dir(engine.state_dir, application) / "report.html"
        assert seen["diagnostics"] in html.unescape(
            wait_for("its report", lambda: report.exists() and report.read_text())
        )


def test_a_kill_keeps_no_output_after_a_dead_applicationmaster(directory: Path, state_dir: Path) -> None:
    target = old_output(directory)
    application = launch(properties(directory, SLEEPER, to_hdfs=OUTPUT))
    home = application_dir(state_dir, application)
    wait_for("its output so far", lambda: [*home.glob("containers/*/workspace/output/b")])
    found = processes(state_dir)
    (home / "kill.json").write_text('{"by": "tony"}')  # the ApplicationMaster dies before it hears of it
    kill(found, *EVERYTHING)
    assert run("dlapp-list").code == 0
    wait_for("KILLED", lambda: status(application)["state"] == "KILLED")
    wait_for("no process of it", lambda: not processes(home))
    wait_for("nothing of it", lambda: not [*home.glob("containers/*/workspace")])
    assert [path.name for path in directory.glob("result*")] == [target.name]


def test_a_killed_runner_does_not_end_applications_and_is_replaced(directory: Path, state_dir: Path) -> None:
    one_at_a_time = {"DLAPP_LOCAL_VCORES": "1"}
    flag = directory / "go"
    wait = f"until [ -e {flag} ]; do sleep 0.05; done"
    first = launch(properties(directory, wait, name="first"), **one_at_a_time)
    second = launch(properties(directory, "echo second", name="second"), **one_at_a_time)
    wait_for("its payload", lambda: is_running(first))
    kill(processes(state_dir), "runner")
    flag.touch()
    assert ended(first)["final_status"] == "SUCCEEDED"
    assert ended(second)["final_status"] == "SUCCEEDED"


@pytest.mark.slow
@pytest.mark.usefixtures("with_one_master")
@on_yarn_when_full
@each_seed("kills")
def test_a_kill_at_any_moment_leaves_old_or_new_output_matching_the_state(
    engine: Engine, tmp_path: Path, seed: int
) -> None:
    """Kill two applications of each seed; at night eight of each, and two on YARN."""
    chance = random.Random(seed)
    rounds, whole_s = (8 if FULL else 2, 0.7) if engine.name == "local" else (2, 4.0)
    engine.put("somewhere else", "")
    for round_ in range(rounds):
        engine.remove("result")
        put_old_output(engine)
        application = launch(properties(tmp_path, WRITER, name="writer", to_hdfs=output_of(engine)))
        time.sleep(chance.uniform(0, whole_s))
        victims = chance.choice([("am",), ("runner", "am"), EVERYTHING])
        with contextlib.suppress(AssertionError):  # it may have ended already
            kill([*engine.processes(application), *engine.runners()], *victims)
        end = ended(application)
        where = f"seed {seed}, round {round_}, killed {victims}: {end['diagnostics']}"
        wait_for(f"no process of it; {where}", functools.partial(is_over, engine, application))
        wait_for(f"its output is settled; {where}", functools.partial(engine.is_settled, application))
        wait_for(f"what lay beside the target is gone; {where}", functools.partial(is_tidy, engine, application))
        seen = status(application)
        committed = any(output["committed"] for output in seen["outputs"])
        # YARN has no other word for an application whose last ApplicationMaster died between claim and farewell.
        assert committed == (seen["final_status"] == "SUCCEEDED") or (committed and engine.name == "yarn"), where
        wanted = "new\n" if committed else "old\n"
        assert engine.tree("result") == {"a": wanted, "b": wanted}, where
        # dlapp did not write the old output, so it is never deleted.
        replaced = [name for name in engine.beside("result") if ".replaced." in name]
        assert [engine.tree(name) for name in replaced] == [{"a": "old\n", "b": "old\n"}] * committed, where
        for name in engine.beside("result"):
            assert name in replaced or set(engine.tree(name).values()) <= {"new\n"}, where
            engine.remove(name)


def test_closing_the_terminal_does_not_end_an_application(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    file = properties(tmp_path, f"until [ -e {go} ]; do sleep 0.05; done; echo done", name="slow")
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests under nohup has it ignored
        os.execv(BIN / "dlapp-launcher", ["dlapp-launcher", "--wait", str(file)])
    text = b""
    while b"DL App ID = application_" not in text or not text.partition(b"DL App ID = ")[2].count(b"\n"):
        text += os.read(terminal, 4096)
    application = text.partition(b"DL App ID = ")[2].split()[0].decode()
    wait_for("its payload", lambda: is_running(application), END_S)
    os.close(terminal)  # the session's processes get SIGHUP
    os.waitpid(pid, 0)
    go.touch()
    assert ended(application)["final_status"] == "SUCCEEDED"


@on_yarn_when_full
def test_sigkill_of_the_waiting_launcher_does_not_end_an_application(engine: Engine, tmp_path: Path) -> None:
    file = properties(tmp_path, "sleep 1; echo done", name="slow")
    waiting = subprocess.Popen([BIN / "dlapp-launcher", "--wait", file], stdout=subprocess.PIPE, text=True)
    assert waiting.stdout is not None
    with waiting.stdout:
        application = next(line for line in waiting.stdout if line.startswith("DL App ID =")).split()[-1]
        waiting.kill()
    waiting.wait()
    assert ended(application)["final_status"] == "SUCCEEDED"


def unchanged(container: dict[str, Any]) -> dict[str, Any]:
    """Return what a status says of a container, without what its task measures every few seconds."""
    return {name: value for name, value in container.items() if name not in ("usage", "receipt")}


def test_a_wrong_or_missing_token_gets_401_without_an_effect(engine: Engine, tmp_path: Path) -> None:
    application = launch(properties(tmp_path, SLEEPER, name="guarded"))
    wait_for("its payload", lambda: is_running(application), END_S)
    url, secret = engine.control(application)
    (container,) = [item["container_id"] for item in status(application)["containers"]]
    before = status(application)
    for token in (None, "", "wrong", derive_token(secret, "another purpose"), derive_token(secret, container)):
        with ControlConnection(url, token) as connection:
            for method, path in (("GET", "/v1/view"), ("POST", "/v1/softkill"), ("POST", "/v1/kill")):
                if engine.name == "yarn" and method == "GET" and not token:
                    continue  # there the view is shown to everybody, as YARN's own pages are
                with pytest.raises(Denied):
                    connection.call(method, path, {"user": "mallory"} if method == "POST" else None)
    with ControlConnection(url, derive_token(secret, TOOLS)) as connection:
        for word in ("hello", "report"):
            with pytest.raises(Denied):
                connection.call("POST", f"/v1/tasks/{container}/{word}", {})
        assert connection.call("GET", "/v1/view")["application_id"] == application
    assert [unchanged(item) for item in status(application)["containers"]] == list(map(unchanged, before["containers"]))
    assert secret not in json.dumps(before)


def test_the_page_needs_access_to_the_secrets(directory: Path, state_dir: Path) -> None:
    application = launch(properties(directory, SLEEPER, name="looked at"))
    wait_for("its payload", lambda: is_running(application))
    url = json.loads((application_dir(state_dir, application) / "am.json").read_text())["control_url"]
    for path in ("/", "/page/", f"/{'0' * 32}/"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url + path, timeout=60)
    page = status(application)["tracking_url"]
    assert page.startswith(url)
    with urllib.request.urlopen(page, timeout=60) as answer:
        assert "looked at" in answer.read().decode()


@pytest.mark.slow
@on_yarn_when_full
def test_many_submissions_at_once_all_run_each_exactly_once(engine: Engine, tmp_path: Path) -> None:
    count = 200 if FULL and engine.name == "local" else 16
    witness = tmp_path / "witness"
    witness.mkdir()
    file = properties(tmp_path, f"mkdir {witness}/$DLAPP_APP_ID", name="one")
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


@on_yarn_when_full
def test_output_of_all_containers_of_a_failed_run_is_kept_aside(engine: Engine, tmp_path: Path) -> None:
    engine.put("somewhere else", "")
    wrote = tmp_path / "wrote"
    wrote.mkdir()
    script = (
        f"mkdir output; echo $CONTAINER_INDEX > output/x; touch {wrote}/$CONTAINER_INDEX\n"
        f"[ $CONTAINER_INDEX = 0 ] || exec sleep 300\n"
        f"until [ -e {wrote}/1 ] && [ -e {wrote}/2 ]; do sleep 0.05; done; exit 3"
    )
    file = properties(tmp_path, script, resources={"containers": 3}, to_hdfs=output_of(engine))
    end = ended(launch(file))
    assert end["diagnostics"] == "container 0 (worker 0) failed: exit code 3"
    partial = end["outputs"][0]["partial"].rpartition("/")[2]
    assert engine.tree(partial) == {f"{n}/x": f"{n}\n" for n in range(3)}


@pytest.mark.slow
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


@pytest.mark.root("to mount a small disk")
def test_a_full_state_disk_loses_views_but_not_the_application(
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
        # A process of which only its name is gone yet still has its files open.
        subprocess.run(["umount", "-l", small], check=True)
