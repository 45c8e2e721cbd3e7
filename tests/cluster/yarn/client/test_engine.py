"""The client's side of YARN against a real cluster: whole applications, from the launcher's lines to their logs."""

from __future__ import annotations

import contextlib
import getpass
import glob
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.client import Client
from dlapp.cluster.yarn import bundle
from dlapp.cluster.yarn.client import submission
from dlapp.cluster.yarn.client.local_files.last_application import last_application
from dlapp.cluster.yarn.client.rest import AppSubmission, YarnRest
from dlapp.config import load_config
from dlapp.errors import FileRefused, NotFound, RequestTooLarge, Unreachable
from dlapp.hadoop.configuration import HadoopConfiguration, read_configuration
from dlapp.hadoop.errors import ApplicationNotFound
from dlapp.login import Login
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, Cause, FinalStatus, State
from tests.applications import listed, properties
from tests.cluster.yarn.on_yarn import set_safe_mode, until, until_heard_of
from tests.services.hadoop import Hadoop

HELLO = 'echo "hello from $CONTAINER_INDEX of $NUM_CONTAINERS"; echo trouble >&2'
WAITS = 'trap "exit 3" TERM; echo begun; while :; do sleep 0.05; done'


@pytest.fixture
def client(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    options = {
        "cluster": "yarn",
        "yarn.conf_dir": str(hadoop.configuration),
        "yarn.python": sys.executable,
        "local.state_dir": str(tmp_path / "state"),
    }
    one = Client(load_config(options))
    yield one
    one.engine.close()


def file_of(directory: Path, script: str, *, containers: int = 1, memory: str = "256m", **application: str) -> str:
    of = {"appname": "'a trial'", "username": getpass.getuser(), **application}
    resources = {"containers": containers, "memory": memory, "gcores": None}
    return str(properties(directory, script, application=of, resources=resources))


def printed(client: Client, application_id: ApplicationId, stream: str) -> list[bytes]:
    found: dict[int, bytes] = {}
    for piece in client.logs(application_id, streams=(stream,)):
        found[piece.log.index] = found.get(piece.log.index, b"") + piece.data
    return [found[index] for index in sorted(found)]


def master_of(application_id: ApplicationId) -> int:
    """The process of its ApplicationMaster on this machine."""
    # A child that it forks has its command line at first, and a number that is mostly higher.
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if words[1:6] == [b"-I", b"-S", b"dlapp.pyz", b"am", b"--engine"]:
            # Behind a ResourceManager's restart its number stands between.
            own = next((text for text in environment.split(b"\0") if text.startswith(b"CONTAINER_ID=")), b"")
            if f"{str(application_id).removeprefix('application')}_".encode() in own:
                return int(process.name)
    raise AssertionError(f"{application_id} has no ApplicationMaster here")


def running(client: Client, application_id: ApplicationId) -> ApplicationView | None:
    view = client.status(application_id)
    phases = {container.phase for container in view.containers}
    return view if phases == {Phase.RUNNING} and len(view.containers) == view.total_containers else None


def test_two_containers_say_hello_and_the_application_succeeds(client: Client, hadoop: Hadoop, tmp_path: Path) -> None:
    lines: list[str] = []
    application_id = client.submit(file_of(tmp_path, HELLO, containers=2), say=lines.append).application_id
    end = client.wait(application_id, timeout_s=240)
    assert (end.state, end.final_status, end.cause) == (State.FINISHED, FinalStatus.SUCCEEDED, Cause.SUCCEEDED)
    assert [container.exit_code for container in end.containers] == [0, 0]
    assert printed(client, application_id, "stdout") == [b"hello from 0 of 2\n", b"hello from 1 of 2\n"]
    assert printed(client, application_id, "stderr") == [b"trouble\n", b"trouble\n"]
    assert f"* While app is running , check : {hadoop.rm_url}/cluster/app/{application_id}" in lines
    page = f"{hadoop.timeline_url}/applicationhistory/app/{application_id}"
    assert f"* After app is completed, check : {page}" in lines
    (url, _) = [file.files["stdout"] for file in client.log_files(application_id)]
    one = end.containers[0].container_id
    assert url.startswith(f"{hadoop.timeline_url}/applicationhistory/logs/")
    assert url.endswith(f"/{one}/{one}/{getpass.getuser()}/stdout/?start=-4096")


def test_after_the_end_the_staging_directory_is_removed_and_the_history_kept(
    client: Client, hadoop: Hadoop, tmp_path: Path
) -> None:
    application_id = client.submit(file_of(tmp_path, HELLO)).application_id
    client.wait(application_id, timeout_s=240)

    def names(directory: str) -> list[str]:
        url = f"{hadoop.hdfs_url}/webhdfs/v1/user/{getpass.getuser()}/.dlapp/{directory}?op=LISTSTATUS"
        return [item["pathSuffix"] for item in hadoop.get(url)["FileStatuses"]["FileStatus"]]

    until(lambda: str(application_id) not in names("staging"))
    assert f"{application_id}.json" in names("history")
    assert client.engine.submission(application_id).spec.appname == "'a trial'"


@pytest.mark.slow
def test_a_submission_whose_answers_are_lost_is_one_application(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, report, tries = YarnRest.submit, YarnRest.report, []

    def lose_answers(self: YarnRest, application: AppSubmission) -> None:
        tries.append(application.application_id)
        submit(self, application)
        raise Unreachable("the answer was lost")

    def lose_one(self: YarnRest, application_id: ApplicationId) -> object:
        if len(tries) == 1:
            until(lambda: report(self, application_id).state.ended)
            raise ApplicationNotFound("GET", "", "another ResourceManager has taken over")
        return report(self, application_id)

    monkeypatch.setattr(YarnRest, "submit", lose_answers)
    monkeypatch.setattr(YarnRest, "report", lose_one)
    monkeypatch.setattr(submission, "IN_DOUBT_S", 240.0)  # with the time until its end
    application_id = client.submit(file_of(tmp_path, f"echo ran >> {tmp_path}/ran")).application_id
    assert tries == [application_id] * 2
    assert client.wait(application_id, timeout_s=240).cause is Cause.SUCCEEDED
    assert (tmp_path / "ran").read_text() == "ran\n"


@pytest.mark.slow
def test_an_uncertain_submission_names_the_command_that_shows_it(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = YarnRest.submit

    def lose_answer(self: YarnRest, application: AppSubmission) -> None:
        submit(self, application)
        raise Unreachable("the answer was lost")

    monkeypatch.setattr(YarnRest, "submit", lose_answer)
    monkeypatch.setattr(submission, "IN_DOUBT_S", 0.0)
    with pytest.raises(
        Unreachable, match=r"may have been accepted nevertheless: dlapp-status application_\d+"
    ) as output:
        client.submit(file_of(tmp_path, "true"))
    last = last_application()
    assert last is not None
    assert last.application_id in str(output.value)
    assert client.wait(ApplicationId.from_text(last.application_id), timeout_s=240).cause is Cause.SUCCEEDED


@pytest.mark.slow
def test_an_application_that_yarn_forgot_is_shown_from_the_history(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application_id = client.submit(file_of(tmp_path, "echo done; exit 3", project="old")).application_id
    known = client.wait(application_id, timeout_s=240)

    def forgets(_rest: YarnRest, wanted: ApplicationId) -> object:
        raise ApplicationNotFound("GET", "", f"application with id '{wanted}' doesn't exist in RM")

    monkeypatch.setattr(YarnRest, "report", forgets)
    monkeypatch.setattr(YarnRest, "reports", lambda _rest, **_: [])
    monkeypatch.setattr(HadoopConfiguration, "timeline_url", lambda _: None)
    shown = client.status(application_id)
    names = ("state", "final_status", "cause", "username", "appname", "project", "diagnostics")
    assert {name: getattr(shown, name) for name in names} == {name: getattr(known, name) for name in names}
    assert str(application_id) in client.engine.ids()
    shown_ones = {view.application_id: view for view in listed(client.engine, limit=20)}
    assert shown_ones[application_id].diagnostics == known.diagnostics
    assert (shown_ones[application_id].state, shown_ones[application_id].cause) == (known.state, known.cause)
    assert [file.index for file in client.log_files(application_id)] == [0]
    assert printed(client, application_id, "stdout") == [b"done\n"]


@pytest.mark.slow
def test_the_same_workspace_is_sent_once(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(tmp_path, f"{HELLO} # {os.urandom(6).hex()}")
    sent: list[str] = []
    real = HdfsStagingFiles.send

    def send(self: HdfsStagingFiles, local: str, location: str, mode: int) -> Any:
        sent.append(os.path.basename(location))
        return real(self, local, location, mode)

    monkeypatch.setattr(HdfsStagingFiles, "send", send)
    first = client.submit(path).application_id
    assert len([name for name in sent if name.endswith(".tar.gz")]) == 1
    sent.clear()
    os.utime(tmp_path / "test_workspace/start.sh", (1000, 1000))  # its content counts
    second = client.submit(path).application_id
    assert sent == []
    for application_id in (first, second):
        assert client.wait(application_id, timeout_s=240).final_status is FinalStatus.SUCCEEDED


@pytest.mark.slow
def test_the_next_application_reuses_dlapp_and_the_workspace_of_a_node(
    client: Client, hadoop: Hadoop, travel_cache: Path, tmp_path: Path
) -> None:
    path = file_of(tmp_path, f"{HELLO} # {os.urandom(6).hex()}")

    def run() -> str:
        application_id = client.submit(path).application_id
        end = client.wait(application_id, timeout_s=240)
        assert end.final_status is FinalStatus.SUCCEEDED, end.diagnostics
        return client.engine.submission(application_id).workspace_archive.rpartition("/")[2]

    def copies(name: str, below: str) -> dict[str, tuple[int, int]]:
        """Each copy that the NodeManagers have: which file it is, and since when."""
        found = hadoop.directory.glob(f"local-*/{below}filecache/*/{name}")
        return {str(item): (item.stat().st_ino, item.stat().st_ctime_ns) for item in found}

    workspace = run()
    program = bundle.packed(str(travel_cache))[1]
    places = ((program, ""), (workspace, f"usercache/{getpass.getuser()}/"))
    kept = [copies(*place) for place in places]
    assert all(kept), kept
    assert run() == workspace
    for place, before in zip(places, kept, strict=True):
        after = copies(*place)
        assert before.items() <= after.items()
        # What is not taken from there comes beside it, in a directory of its own.
        nodes = [text.removeprefix(f"{hadoop.directory}/").partition("/")[0] for text in after]
        assert len(nodes) == len(set(nodes)), after
    # A NodeManager still removes what the applications had: pathlib would stumble over that.
    own = glob.glob(f"{hadoop.directory}/local-*/usercache/**/dlapp-*.pyz", recursive=True)
    assert [item for item in own if os.path.basename(item) == program] == []


@pytest.mark.slow
def test_localized_input_stays_in_the_users_cache_of_the_nodes(client: Client, hadoop: Hadoop, tmp_path: Path) -> None:
    location = f"/user/{getpass.getuser()}/input-{os.getpid()}-{tmp_path.name}"
    (tmp_path / "data").write_text("42\n")
    files = HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(getpass.getuser())))
    files.send(str(tmp_path / "data"), files.home + location.removeprefix(f"/user/{getpass.getuser()}"), 0o644)
    path = file_of(tmp_path, f"cat data/{location.rpartition('/')[2]}", containers=2)
    with open(path, "a") as file:
        file.write(f"[from_hdfs]\nhdfs={location}\ninput_path=data\n")
    application_id = client.submit(path).application_id
    assert client.wait(application_id, timeout_s=240).final_status is FinalStatus.SUCCEEDED
    assert printed(client, application_id, "stdout") == [b"42\n", b"42\n"]
    kept = list(hadoop.directory.glob(f"local-*/usercache/{getpass.getuser()}/dlapp-cache/entries/*/tree/input-*"))
    assert [item.read_text() for item in kept if item.name == location.rpartition("/")[2]] in (["42\n"], ["42\n"] * 2)


@pytest.mark.slow
def test_a_payload_that_fails_fails_its_application_with_its_exit_code(client: Client, tmp_path: Path) -> None:
    end = client.wait(client.submit(file_of(tmp_path, "exit 7")), timeout_s=240)
    assert (end.state, end.cause, end.containers[0].exit_code) == (State.FINISHED, Cause.FAILED, 7)


@pytest.mark.slow
def test_a_soft_kill_gives_the_payload_its_grace(client: Client, tmp_path: Path) -> None:
    application_id = client.submit(file_of(tmp_path, WAITS)).application_id
    until(lambda: running(client, application_id) and printed(client, application_id, "stdout") == [b"begun\n"])
    assert "is being stopped" in client.softkill(application_id)
    end = client.wait(application_id, timeout_s=240)
    assert (end.final_status, end.cause, end.containers[0].exit_code) == (FinalStatus.KILLED, Cause.SOFT_KILLED, 3)


def test_a_kill_leaves_no_process_and_no_file(client: Client, hadoop: Hadoop, tmp_path: Path) -> None:
    mark = f"sleep 4242{os.getpid()}"
    application_id = client.submit(file_of(tmp_path, f"exec {mark}", containers=2)).application_id
    until(lambda: running(client, application_id))
    assert client.kill(application_id) == f"{application_id} was killed, no output kept"
    assert client.status(application_id).state is State.KILLED
    until(lambda: subprocess.run(["pgrep", "-fx", mark], capture_output=True).returncode == 1)
    files = HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(getpass.getuser())))
    assert str(application_id) not in files.names(f"{files.home}/.dlapp/staging")
    files.close()


@pytest.mark.slow
def test_a_kill_works_with_a_read_only_hdfs_and_the_next_command_cleans_up(
    client: Client, hadoop: Hadoop, tmp_path: Path
) -> None:
    mark = f"sleep 4343{os.getpid()}"
    application_id = client.submit(file_of(tmp_path, f"exec {mark}")).application_id
    until(lambda: running(client, application_id))
    set_safe_mode(hadoop, on=True)
    try:
        message = client.kill(application_id)
        until(lambda: subprocess.run(["pgrep", "-fx", mark], capture_output=True).returncode == 1)
        assert client.status(application_id).state is State.KILLED
    finally:
        set_safe_mode(hadoop, on=False)
    assert message.startswith(f"{application_id} was killed, but its output cannot be settled now: ")
    assert "HDFS is in safe mode" in message
    assert client.status(application_id).state is State.KILLED
    files = HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(getpass.getuser())))
    assert str(application_id) not in files.names(f"{files.home}/.dlapp/staging")
    files.close()


@pytest.mark.slow
def test_the_next_command_removes_leftovers_of_an_externally_killed_application(
    client: Client, hadoop: Hadoop, rest: YarnRest, tmp_path: Path
) -> None:
    application_id = client.submit(file_of(tmp_path, WAITS)).application_id
    until(lambda: running(client, application_id))
    files = HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(getpass.getuser())))
    staging = f"{files.home}/.dlapp/staging/{application_id}"
    # Later answers come from the last view that its ApplicationMaster wrote.
    until(
        lambda: (
            "view.json" in files.names(staging)
            and json.loads(files.read(f"{staging}/view.json", max_bytes=1 << 20))["containers"]
        )
    )
    assert files.status(staging).mode & 0o777 == 0o700  # type: ignore[union-attr]
    os.kill(master_of(application_id), signal.SIGSTOP)  # it has no time to clean up
    try:
        assert rest.kill(application_id, timeout_s=120) is State.KILLED
        view = client.status(application_id)
    finally:
        with contextlib.suppress(AssertionError, ProcessLookupError):
            os.kill(master_of(application_id), signal.SIGCONT)
    assert (view.state, view.cause, len(view.containers)) == (State.KILLED, Cause.KILLED, 1)
    assert files.status(staging) is None
    # As an ApplicationMaster leaves it that is killed after it wrote the history.
    files.make(staging, 0o700)
    files.write(f"{staging}/view.json", b"{}", 0o600)
    assert client.status(application_id) == view
    assert files.status(staging) is None
    assert client.engine.submission(application_id).spec.script == "start.sh"
    files.close()


@pytest.mark.slow
def test_a_kill_mark_in_the_staging_directory_stops_the_application(
    client: Client, hadoop: Hadoop, tmp_path: Path
) -> None:
    application_id = client.submit(file_of(tmp_path, WAITS)).application_id
    until(lambda: running(client, application_id))
    files = HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(getpass.getuser())))
    files.write(f"{files.home}/.dlapp/staging/{application_id}/softkill.json", b'{"by": "tony"}', 0o600)
    files.close()
    end = client.wait(application_id, timeout_s=240)
    assert (end.cause, end.soft_kill_by) == (Cause.SOFT_KILLED, "tony")


@pytest.mark.slow
def test_tasks_of_a_killed_applicationmaster_continue_under_the_next(
    client: Client, hadoop: Hadoop, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = f"echo once; while [ ! -e {go} ]; do sleep 0.05; done"
    application_id = client.submit(file_of(tmp_path, script, containers=2)).application_id
    before = until(lambda: running(client, application_id))
    until_heard_of(hadoop, *(container.container_id for container in before.containers))
    os.kill(master_of(application_id), signal.SIGKILL)
    until(lambda: client.status(application_id).attempt == 2 and running(client, application_id))
    go.touch()
    end = client.wait(application_id, timeout_s=240)
    assert end.cause is Cause.SUCCEEDED
    assert [container.container_id for container in end.containers] == [
        container.container_id for container in before.containers
    ]
    assert printed(client, application_id, "stdout") == [b"once\n", b"once\n"]


def test_an_impossible_request_is_refused_before_the_submission(client: Client, tmp_path: Path) -> None:
    script = "true"
    with pytest.raises(RequestTooLarge, match=r"asked for 65536 memory-mb in one container, the maximum .* is 4096"):
        client.submit(file_of(tmp_path, script, memory="64g"))
    with pytest.raises(FileRefused, match=r"application.queue: there is no queue 'nowhere'; there are default"):
        client.submit(file_of(tmp_path, script, queue="nowhere"))


def test_a_node_without_the_configured_python_gives_one_line(hadoop: Hadoop, tmp_path: Path) -> None:
    options = {
        "cluster": "yarn",
        "yarn.conf_dir": str(hadoop.configuration),
        "yarn.python": "/no/such/python3",
        "yarn.am_attempts": "1",
    }
    client = Client(load_config(options))
    end = client.wait(client.submit(file_of(tmp_path, HELLO)), timeout_s=240)
    assert end.state is State.FAILED
    assert "there is no /no/such/python3 on" in end.diagnostics
    assert "yarn.python" in end.diagnostics
    client.engine.close()


def test_an_application_id_that_was_never_submitted_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match="is not known to YARN"):
        client.status(ApplicationId(1700000000000, 1))
