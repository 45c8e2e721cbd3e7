"""Sweeps on one machine whose Docker, HDFS or registry is away for a while: trials wait for it, and none fails.

A sweep that lacks trials as the service stayed away is no success, and names them. One sweep has five trials, two at a
time.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dlapp.am.decisions import assessment
from dlapp.hadoop.configuration import read_configuration
from dlapp.login import Login
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from tests.applications import BIN, application_dir, ended, launch, properties, run, status, wait_for
from tests.services.containers.dockerd import IMAGE, Dockerd, busybox_root, own_daemon
from tests.services.containers.registry import Registry
from tests.services.hadoop import QUICK_TO_NOTICE, Hadoop, NoHadoop
from tests.tiers import FULL

pytestmark = pytest.mark.slow
END_S = 240.0
TRIALS = 5
WRITES = 'mkdir -p output; echo "$N" >output/found'
WAITS = "echo ready; until [ -e finish ]; do sleep 0.05; done"
SWEEP = {"grid.N": ", ".join(map(str, range(TRIALS))), "trials_per_container": 2}


def states(application: str) -> dict[int, str]:
    """Return the states of the trials by their numbers, from ``dlapp-sweep --json``."""
    done = run("dlapp-sweep", application, "--json")
    assert done.code == 0, done.err
    return {int(one["trial"]): str(one["state"]) for one in json.loads(done.out)["trials"]}


def workspaces(state_dir: Path, application: str) -> list[Path]:
    """Return the workspaces of the trials that run."""
    return list((application_dir(state_dir, application) / "containers").glob("*/trials/*/workspace"))


def ready(application: str, state_dir: Path) -> set[str]:
    """Return the trials, as ``number_try``, whose programs have started."""
    logs = (application_dir(state_dir, application) / "containers").glob("*/trial_*.stdout")
    return {one.name.split("_", 1)[1].removesuffix(".stdout") for one in logs if one.read_text() == "ready\n"}


def finish_all(state_dir: Path, application: str) -> dict[str, Any]:
    """Let the program of each trial end, until the sweep has ended; the status then."""

    def has_ended() -> bool:
        for one in workspaces(state_dir, application):
            if one.is_dir():
                (one / "finish").touch()
        return bool(status(application)["state"] in ("FINISHED", "FAILED", "KILLED"))

    wait_for("the end of the sweep", has_ended, END_S)
    return status(application)


def until_waiting(application: str, service: str) -> str:
    """Return the line of the status that says that trials wait for a service, and see that none has failed."""

    def look() -> str | None:
        lines = run("dlapp-status", application).out.splitlines()
        return next((line for line in lines if "wait" in line and service in line), None)

    line = wait_for(f"the status names {service}", look, END_S)
    assert "failed" not in states(application).values()
    return line


def check_is_whole(application: str, found: dict[str, str]) -> None:
    """See that a sweep is a plain success with all results."""
    end = status(application)
    assert (end["final_status"], end["diagnostics"]) == ("SUCCEEDED", "")
    assert states(application) == dict.fromkeys(range(TRIALS), "done")
    assert found == {f"{number}/found": f"{number}\n" for number in range(TRIALS)}


def check_lacks(application: str, numbers: set[int]) -> None:
    """See that a sweep has failed, and its message names these trials, and how the others go on."""
    end = status(application)
    assert end["final_status"] == "FAILED", end["diagnostics"]
    assert {number for number, state in states(application).items() if state == "failed"} == numbers
    names = ", ".join(assessment.ranges(sorted(numbers)))
    message = f"{len(numbers)} of {TRIALS} trials failed (trials {names}); the first of them, trial {min(numbers)}: "
    assert end["diagnostics"].startswith(message)
    resumed = "the output of the others is committed, and `dlapp-launcher --resume` runs the trials that failed"
    assert end["diagnostics"].endswith(resumed)


@contextlib.contextmanager
def waited_for(file: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Submit with ``--wait``; the application and the command, which ends with it."""
    command = [str(BIN / "dlapp-launcher"), "--wait", *options, str(file)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        lines = iter(one.stdout.readline, "")
        application = next(line.partition(" = ")[2].strip() for line in lines if line.startswith("DL App ID"))
        threading.Thread(target=one.stdout.read, name="output", daemon=True).start()
        try:
            yield application, one
        finally:
            one.terminate()


def stored(target: Path) -> dict[str, str]:
    return {f"{one.parent.name}/found": one.read_text() for one in (target / "trials").glob("*/found")}


# ---- Docker and a registry ----


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dockerd]:
    """A daemon that may be stopped."""
    monkeypatch.setenv("DLAPP_CLUSTER", "local")
    with own_daemon() as daemon:
        monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", daemon.host)
        monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_NETWORK", "none")
        yield daemon


def in_docker(directory: Path, script: str, image: str = IMAGE, **application: object) -> Path:
    """Return a file of the sweep with this script, in Docker, whose result is to be in a directory of this machine."""
    return properties(
        directory,
        script,
        application={"docker_image": image, **application},
        sweep=SWEEP,
        to_hdfs={"output_path": "output", "hdfs": directory / "result"},
    )


@pytest.mark.docker
def test_trials_wait_for_a_docker_that_stops_under_them_and_none_fails(
    own: Dockerd, tmp_path: Path, state_dir: Path
) -> None:
    """Stop dockerd while two of five trials run, and start it again when the status says that they wait."""
    application = launch(in_docker(tmp_path, f"{WAITS}\n{WRITES}"))
    wait_for("two trials run", lambda: len(ready(application, state_dir)) == 2, END_S)
    own.terminate()
    assert f"Docker at {own.host}" in until_waiting(application, "Docker at")
    own.start()
    finish_all(state_dir, application)
    check_is_whole(application, stored(tmp_path / "result"))


@pytest.mark.docker
def test_trials_wait_for_a_docker_that_stops_before_the_next_begin_and_those_that_ended_count(
    own: Dockerd, tmp_path: Path, state_dir: Path
) -> None:
    """Stop dockerd when the first two of five trials have ended and the next two run, and start it again.

    Those that had ended do not run again: each started once.
    """
    application = launch(in_docker(tmp_path, f"{WAITS}\n{WRITES}"))
    wait_for("two trials run", lambda: len(ready(application, state_dir)) == 2, END_S)
    for one in workspaces(state_dir, application):
        (one / "finish").touch()
    wait_for("the next two run", lambda: len(ready(application, state_dir)) == 4, END_S)
    own.terminate()
    until_waiting(application, "Docker at")
    own.start()
    finish_all(state_dir, application)
    check_is_whole(application, stored(tmp_path / "result"))
    assert {name for name in ready(application, state_dir) if name.startswith(("0_", "1_"))} == {"0_1", "1_1"}


@pytest.mark.docker
def test_a_sweep_whose_docker_stays_away_is_no_success_and_names_what_it_lacks(
    own: Dockerd, tmp_path: Path, state_dir: Path
) -> None:
    """Stop dockerd for good when two of five trials have ended; ``service_patience`` is 3 s.

    The command that waits for the sweep exits with 1. ``--resume`` runs the other three once dockerd is back.
    """
    file = in_docker(tmp_path, f"{WAITS}\n{WRITES}", service_patience="3s")
    with waited_for(file) as (application, waiting):
        wait_for("two trials run", lambda: len(ready(application, state_dir)) == 2, END_S)
        for one in workspaces(state_dir, application):
            (one / "finish").touch()
        wait_for("the next two run", lambda: len(ready(application, state_dir)) == 4, END_S)
        own.terminate()
        end = ended(application, END_S)
        assert waiting.wait(END_S) == 1
    check_lacks(application, {2, 3, 4})
    assert "waited 3 s (service_patience) for Docker at" in end["diagnostics"]
    assert stored(tmp_path / "result") == {"0/found": "0\n", "1/found": "1\n"}
    own.start()
    with waited_for(file, "--resume", application) as (resumed, waiting):
        finish_all(state_dir, resumed)
        assert waiting.wait(END_S) == 0
    check_is_whole(resumed, stored(tmp_path / "result"))


@pytest.mark.docker
def test_a_sweep_waits_for_a_registry_that_is_away(own: Dockerd, tmp_path: Path, state_dir: Path) -> None:
    """Refuse connections at the address of the image's registry until the status names it, and serve it then."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    application = launch(in_docker(tmp_path, WRITES, image=f"127.0.0.1:{port}/it:1"))
    until_waiting(application, f"the registry of image 127.0.0.1:{port}/it:1")
    with Registry(busybox_root(), port=port):
        ended(application, END_S)
    check_is_whole(application, stored(tmp_path / "result"))


# ---- HDFS ----


class Files:
    """HDFS of a test that may be stopped, and files there."""

    def __init__(self, hadoop: Hadoop, name: str) -> None:
        self._hadoop = hadoop
        place = read_configuration(str(hadoop.configuration)).hdfs(Login(getpass.getuser()))
        self._files = HdfsStagingFiles(place)
        self.root = f"{self._files.home}/{name}"

    def put(self, name: str, text: str) -> str:
        """Write a file; its location."""
        self._files.make(self.root, 0o755)
        self._files.write(f"{self.root}/{name}", text.encode(), 0o644)
        return f"{self.root}/{name}"

    def stored(self) -> dict[str, str]:
        """Return the results of the trials, as `stored` does."""
        trials = f"{self.root}/result/trials"
        numbers = [name for name in self._files.names(trials) if name.isdigit()]
        paths = [f"{number}/found" for number in numbers]
        return {path: self._files.read(f"{trials}/{path}", max_bytes=1 << 10).decode() for path in paths}

    def stop(self) -> None:
        """Stop the NameNode."""
        self._hadoop.stop_part("nn")

    def run(self) -> None:
        """Start the NameNode where it does not run, as after a test that failed."""
        if self._hadoop.status()["nn"]["exit"] is not None:
            self.start()

    def start(self) -> None:
        """Start the NameNode, and wait until HDFS takes files."""
        self._hadoop.start_part("nn")
        self._hadoop.wait_until_ready(parts=("nn", "dn"))

    def close(self) -> None:
        self._files.close()


@pytest.fixture(scope="module")
def hdfs() -> Iterator[Hadoop]:
    """A NameNode and a DataNode, of these tests alone."""
    try:
        with Hadoop.start(parts=("nn", "dn"), settings={"hdfs-site.xml": QUICK_TO_NOTICE}) as one:
            yield one
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


@pytest.fixture
def files(hdfs: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    monkeypatch.setenv("DLAPP_CLUSTER", "local")
    monkeypatch.setenv("DLAPP_YARN_CONF_DIR", str(hdfs.configuration))
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    one = Files(hdfs, tmp_path.name)
    yield one
    one.run()
    one.close()


def on_hdfs(directory: Path, files: Files, script: str, **sections: Mapping[str, object]) -> Path:
    """Return a file of the sweep with this script, whose result is to be on HDFS."""
    output = {"output_path": "output", "hdfs": f"{files.root}/result"}
    return properties(directory, script, name="test", sweep=SWEEP, to_hdfs=output, **sections)


@pytest.mark.hadoop
def test_trials_wait_for_an_hdfs_that_is_away_when_they_store_their_output(
    files: Files, tmp_path: Path, state_dir: Path
) -> None:
    """Stop the NameNode while two of five trials run, let them end, and start it again when the status says that they
    wait for it."""
    application = launch(on_hdfs(tmp_path, files, f"{WAITS}\n{WRITES}"))
    wait_for("two trials run", lambda: len(ready(application, state_dir)) == 2, END_S)
    files.stop()
    for one in workspaces(state_dir, application):
        (one / "finish").touch()
    until_waiting(application, "hdfs://127.0.0.1:")
    files.start()
    finish_all(state_dir, application)
    check_is_whole(application, files.stored())


@pytest.mark.hadoop
def test_a_sweep_waits_for_an_hdfs_that_is_away_when_its_input_is_to_be_read(files: Files, tmp_path: Path) -> None:
    """Stop the NameNode after the submission of a sweep that waits for another application, which ends then; start it
    again when the status names it."""
    go = tmp_path / "go"
    first = launch(properties(tmp_path, f"until [ -e {go} ]; do sleep 0.05; done", name="first"))
    given = {"hdfs": files.put("words", "given\n"), "input_path": "input"}
    script = f'test "$(cat input/words)" = given && {WRITES}'
    application = launch(on_hdfs(tmp_path, files, script, application={"after": first}, from_hdfs=given))
    files.stop()
    go.touch()
    until_waiting(application, "hdfs://127.0.0.1:")
    files.start()
    ended(application, END_S)
    check_is_whole(application, files.stored())


if FULL:  # it takes two minutes: a try to store an output waits one

    @pytest.mark.hadoop
    def test_a_sweep_that_could_not_store_the_output_of_trials_is_no_success_and_names_them(
        files: Files, tmp_path: Path, state_dir: Path
    ) -> None:
        """Stop the NameNode while the first two of five trials run; ``output_patience`` is 2 s, and it is back for the
        others. What the two made stays on this machine, where the status says; the command exits with 1."""
        file = on_hdfs(tmp_path, files, f"{WAITS}\n{WRITES}", application={"output_patience": "2s"})
        with waited_for(file) as (application, waiting):
            wait_for("two trials run", lambda: len(ready(application, state_dir)) == 2, END_S)
            files.stop()
            for one in workspaces(state_dir, application):
                (one / "finish").touch()
            wait_for("the next two run", lambda: len(ready(application, state_dir)) == 4, END_S)
            files.start()
            end = finish_all(state_dir, application)
            assert waiting.wait(END_S) == 1
        check_lacks(application, {0, 1})
        assert "the output could not be stored" in end["diagnostics"]
        assert files.stored() == {f"{number}/found": f"{number}\n" for number in (2, 3, 4)}
