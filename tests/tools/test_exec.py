"""dlapp-exec, and dlapp-shell on an engine: commands beside a program, on pipes and on a real terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from dlapp.system.processes.proc import all_processes, command_line
from tests.applications import BIN, Done, application_dir, ended, launch, processes, properties, run, status, wait_for
from tests.engines import Engine, on_yarn_when_full
from tests.services.containers.dockerd import IMAGE, Dockerd
from tests.tools.terminal import Terminal

WAITS = 'trap "exit 0" TERM; echo "$TMPDIR" >tmpdir; echo "$$" >ready; while :; do sleep 0.1; done'


def exec_(*words: object, stdin: bytes = b"") -> Done:
    """Run dlapp-exec with something on standard input."""
    done = subprocess.run([BIN / "dlapp-exec", *map(str, words)], input=stdin, capture_output=True, timeout=120)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def running(application: str) -> bool:
    return [container["phase"] for container in status(application)["containers"]] == ["running"]


def launched(file: Path) -> str:
    application = launch(file)
    containers = application_dir(Path(os.environ["DLAPP_LOCAL_STATE_DIR"]), application) / "containers"

    def is_ready() -> bool:
        # A program that was started may not have written anything yet.
        return running(application) and any(path.read_text() for path in containers.glob("*/workspace/ready"))

    wait_for("the program runs", is_ready)
    return application


def sleepers(marker: str) -> list[int]:
    """Return the processes that have a number as an argument of their own."""
    found = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in found if marker.encode() in command_line(pid)]


def test_a_command_is_as_the_program_and_ends_with_its_client_or_its_container(tmp_path: Path, state_dir: Path) -> None:
    file = properties(tmp_path, WAITS, application={"env.GREETING": "hi there"})
    application = launched(file)
    script = 'cat ready tmpdir; echo "$TMPDIR"; echo "$GREETING|$CONTAINER_INDEX|$DLAPP_APP_ID"; id -u; echo oh >&2'
    script += "; cat; exit 7"
    done = exec_("-i", application, "--", "sh", "-c", script, stdin=b"typed\n")
    pid, tmpdir, *rest = done.out.splitlines()
    assert pid.isdecimal()
    assert tmpdir.startswith("/tmp/dlapp-")
    assert rest == [tmpdir, f"hi there|0|{application}", str(os.getuid()), "typed"]
    assert (done.code, done.err) == (7, "oh\n")
    done = exec_(application, "worker:0", "--json", "--", "no-such-program")
    assert done.code == 127
    assert json.loads(done.out)["exit_code"] == 127
    assert "no-such-program" in done.err

    marker = f"{4_000_000 + os.getpid()}"
    command = [str(BIN / "dlapp-exec"), application, "--", "sh", "-c", f"echo begun; trap '' HUP; sleep {marker}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"begun\n"
        wait_for("it sleeps", lambda: sleepers(marker))
        client.kill()
    wait_for("the command ends with its client", lambda: not sleepers(marker), 120.0)
    assert running(application)

    with Terminal("dlapp-exec", "-it", application, "--", "sh", "-c", f"echo begun; sleep {marker}") as terminal:
        terminal.expect("^begun")
        assert run("dlapp-kill", application).code == 0
        terminal.expect("ended, and the command with it")
        assert terminal.wait() == 137
    assert sleepers(marker) == []
    refused = exec_(application, "--", "true")
    assert (refused.code, refused.out) == (3, "")
    assert refused.err.startswith(f"Error: {application} ")
    assert refused.err.count("\n") == 1


def test_on_a_terminal_keys_and_sizes_reach_the_command(tmp_path: Path) -> None:
    application = launched(properties(tmp_path, WAITS))
    with Terminal("dlapp-exec", "-it", application, "--", "sh", "-i") as terminal:
        terminal.expect("[#$] ")
        terminal.type("stty size\n")
        terminal.expect("40 120")
        terminal.resize(50, 133)
        terminal.type('trap : WINCH; until [ "$(stty size)" = "50 133" ]; do sleep 0.1; done; echo resi"zed"\n')
        terminal.expect("resized")
        marker = f"{7_000_000 + os.getpid()}"
        terminal.type(f"sleep {marker}\n")
        wait_for("it sleeps", lambda: sleepers(marker), 120.0)
        terminal.type("\x03")
        terminal.type("echo $((40 + 2)) still\n")
        terminal.expect("42 still")
        terminal.type("exit 6\n")
        assert terminal.wait() == 6
    assert running(application)
    assert run("dlapp-softkill", application).code == 0
    assert ended(application)["final_status"] == "KILLED"


def test_invalid_commands_are_refused_with_one_line(tmp_path: Path) -> None:
    assert run("dlapp-exec", "last").code == 2
    missing = exec_("last", "--", "true")
    assert (missing.code, missing.out) == (3, "")
    application = launched(properties(tmp_path, WAITS))
    for words, code in ((("1",), 3), (("other",), 3), (("worker:x",), 2), (("-it",), 2)):
        refused = exec_(application, *words, "--", "true")
        assert (refused.code, refused.out) == (code, "")
        assert refused.err.startswith("Error: ")
        assert refused.err.count("\n") == 1
    run("dlapp-kill", application)


@pytest.mark.proves("exec-lifeline")
@pytest.mark.slow
def test_a_command_in_docker_runs_like_the_program_and_leaves_no_files(
    dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_NETWORK", "none")
    file = properties(tmp_path, WAITS, application={"docker_image": IMAGE, "env.GREETING": "hi there"})
    application = launched(file)
    script = 'echo "$PWD|$GREETING|$DLAPP_GENERATION|${TINI_KILL_PROCESS_GROUP-}"; id -u; echo oh >&2; cat; exit 7'
    done = exec_("-i", application, "--", "sh", "-c", script, stdin=b"typed\n")
    assert (done.code, done.err) == (7, "oh\n")
    assert done.out.splitlines() == ["/workspace|hi there|0|", str(os.getuid()), "typed"]
    assert exec_(application, "--", "no-such-program").code == 127
    script = "for one in /dlapp/exec/*; do rm -f $one || touch /dlapp/exec/x || echo no; done"
    assert exec_(application, "--", "sh", "-c", script).out == "no\n"

    marker = f"{5_000_000 + os.getpid()}"
    script = f"echo begun; trap '' HUP TERM; sleep {marker}; :"
    command = [str(BIN / "dlapp-exec"), application, "--", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"begun\n"
        wait_for("it sleeps", lambda: sleepers(marker))
        client.send_signal(signal.SIGKILL)
    wait_for("the command ends with its client", lambda: not sleepers(marker), 120.0)

    with Terminal("dlapp-exec", "-it", application, "--", "sh", "-i") as terminal:
        terminal.expect("[#$] ")
        terminal.type("trap '' TERM HUP; echo $((40 + 2)) still\n")
        terminal.expect("42 still")
        assert run("dlapp-softkill", application).code == 0  # which the shell ignores
        assert terminal.wait() != 0
    assert ended(application)["state"] in ("FINISHED", "KILLED")
    wait_for("the container is removed", lambda: not dockerd.containers("label=dlapp.container"), 120.0)


@pytest.mark.slow
@pytest.mark.docker
@on_yarn_when_full
def test_a_terminal_reaches_a_command_in_docker(
    engine: Engine, dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    application = launch(properties(tmp_path, WAITS, application={"docker_image": IMAGE, "network": "none"}))

    def look() -> str:
        return exec_(application, "--", "sh", "-c", "test -s ready && hostname").out

    host = wait_for("the program runs", look, 180.0).strip()
    assert host != os.uname().nodename
    with Terminal("dlapp-exec", "-it", application, "--", "sh", "-i") as terminal:
        terminal.expect("[#$] ")
        terminal.type('stty size; echo "on $(hostname)"\n')
        terminal.expect("40 120")
        terminal.expect(f"on {host}")
        terminal.resize(50, 133)
        terminal.type('until [ "$(stty size)" = "50 133" ]; do sleep 0.1; done; echo resi"zed"\n')
        terminal.expect("resized")
        marker = f"{8_000_000 + os.getpid()}"
        terminal.type(f"sleep {marker}\n")
        wait_for("it sleeps", lambda: sleepers(marker), 120.0)
        terminal.type("\x03")
        terminal.type("echo $((40 + 2)) still\n")
        terminal.expect("42 still")
        terminal.type("exit 6\n")
        assert terminal.wait(120.0) == 6
    wait_for("nothing of it is left", lambda: not sleepers(marker), 120.0)
    with Terminal("dlapp-exec", "-it", application, "--", "sh", "-c", f"echo begun; sleep {marker}") as terminal:
        terminal.expect("^begun")
        os.kill(terminal.pid, signal.SIGKILL)
    wait_for("the command ends with its client", lambda: not sleepers(marker), 120.0)
    assert run("dlapp-kill", application).code == 0
    assert ended(application, 180.0)["state"] == "KILLED"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "image"), [("am", ""), ("task", ""), pytest.param("task", IMAGE, marks=pytest.mark.docker)]
)
def test_a_command_ends_when_the_applicationmaster_or_the_task_is_killed(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed: str,
    image: str,
) -> None:
    if image:
        monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", request.getfixturevalue("dockerd").host)
        monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_NETWORK", "none")
    application = launched(properties(tmp_path, WAITS, application={"docker_image": image} if image else {}))
    marker = f"{6_000_000 + os.getpid()}"
    script = f"echo begun; trap '' HUP TERM; sleep {marker}; :"
    with Terminal("dlapp-exec", "-it", application, "--", "sh", "-c", script) as terminal:
        terminal.expect("^begun")
        wait_for("it sleeps", lambda: sleepers(marker))
        pids = {process.pid for process in processes(state_dir) if process.role == killed}
        # What a task forks has its command line, too, and pids wrap around.
        (first, *_) = sorted(
            (process.parent in pids, process.started, process.pid) for process in all_processes() if process.pid in pids
        )
        os.kill(first[-1], signal.SIGKILL)
        assert terminal.wait(120.0) in (1, 137)
    wait_for("the command is ended", lambda: not sleepers(marker), 120.0)
    if killed == "am":
        wait_for("the next one answers", lambda: exec_(application, "--", "echo", "again").out == "again\n", 120.0)
    run("dlapp-kill", application)
    wait_for("nothing of it is left", lambda: all(process.role == "runner" for process in processes(state_dir)), 120.0)


@on_yarn_when_full
def test_a_shell_on_an_engine_is_an_application_that_ends_with_it(engine: Engine, tmp_path: Path) -> None:
    file = properties(tmp_path, "exit 1", application={"env.GREETING": "hi there"})
    with Terminal("dlapp-shell", "--cluster", engine.name, "--gcores", "0", file) as terminal:
        terminal.expect("exit closes")
        terminal.expect("[#$] ")
        terminal.type('echo "$GREETING|$(ls)"; stty size\n')
        terminal.expect(r"^hi there\|start\.sh")
        terminal.expect("40 120")
        terminal.type("exit 6\n")
        assert terminal.wait(120.0) == 6
    (application,) = [str(view.application_id) for view in engine.client().list()][-1:]
    end = ended(application)
    assert (end["final_status"], end["outputs"]) == ("SUCCEEDED", [])


@on_yarn_when_full
def test_a_shell_on_an_engine_reads_commands_without_a_terminal(engine: Engine, tmp_path: Path) -> None:
    file = properties(tmp_path, "exit 1", application={"env.GREETING": "hi there"})
    command = [str(BIN / "dlapp-shell"), "--cluster", engine.name, "--gcores", "0", str(file)]
    done = subprocess.run(
        command, input='echo "$GREETING|$(ls)"\nexit 6\n', capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (6, "hi there|start.sh\n"), done.stderr


def test_the_application_of_a_shell_ends_with_its_terminal(tmp_path: Path, state_dir: Path) -> None:
    with Terminal("dlapp-shell", "--cluster", "local", properties(tmp_path, "exit 1")) as terminal:
        terminal.expect("exit closes")
        terminal.expect("[#$] ")
        os.kill(terminal.pid, signal.SIGKILL)
    application = run("dlapp-list", "-o", "id").out.split()[-1]
    assert ended(application)["final_status"] == "SUCCEEDED"
    wait_for("nothing of it is left", lambda: all(process.role == "runner" for process in processes(state_dir)), 120.0)
