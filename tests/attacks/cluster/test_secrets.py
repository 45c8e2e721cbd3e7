"""Test what a cluster shows to everybody has no secret in it, and what others write there is not obeyed.

HDFS without Kerberos believes every name, so whatever lies there is everybody's.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.client import Client
from dlapp.cluster.yarn.am_plan import AmPlan
from dlapp.cluster.yarn.client.am_client import AmClients
from dlapp.cluster.yarn.client.local_files import tools_tokens
from dlapp.cluster.yarn.client.local_files.tools_tokens import KeptToken
from dlapp.cluster.yarn.client.rest import AppReport, YarnRest
from dlapp.cluster.yarn.client.status import ApplicationReader
from dlapp.config import load_config
from dlapp.errors import Denied, NotFound
from dlapp.hadoop.configuration import read_configuration
from dlapp.hadoop.tokens import Credentials
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.net.control import Admission, ControlServer, Request
from dlapp.net.control_client import ControlConnection
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.values.access import TOOLS, derive_token
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, Cause, ContainerView, FinalStatus, State
from dlapp.values.serialization import to_json
from tests.applications import processes_of, properties
from tests.cluster.yarn.on_yarn import until
from tests.services.hadoop import Hadoop

OWNER = getpass.getuser()
WAITS = 'trap "exit 3" TERM; while :; do sleep 0.05; done'
VALUE, VALUE_OF_A_FILE = "a-value-of-the-properties", "a-value-of-the-file"
APP = ApplicationId(1_700_000_000_000, 7)


def client_of(hadoop: Hadoop, home: Path, monkeypatch: pytest.MonkeyPatch, user: str, **keys: str) -> Client:
    """A client of a Hadoop user, on a machine of its own: in a home directory where nothing is.

    Args:
        hadoop, home, monkeypatch, user: the cluster, that directory, the test's, and the user.
        keys: other keys of the configuration, with ``__`` for a dot.
    """
    travel = Path.home() / ".cache/dlapp/travel"
    if not (home / ".cache/dlapp").exists():
        (home / ".cache/dlapp").mkdir(parents=True)
        (home / ".cache/dlapp/travel").symlink_to(travel.resolve())
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HADOOP_USER_NAME", user)
    return Client(
        load_config(
            {
                "cluster": "yarn",
                "yarn.conf_dir": str(hadoop.configuration),
                "yarn.python": sys.executable,
                "local.state_dir": str(home / "state"),
                **{key.replace("__", "."): text for key, text in keys.items()},
            }
        )
    )


class Submitted:
    """An application that waits, and its submitter's client."""

    def __init__(self, client: Client, application_id: ApplicationId, files: HdfsStagingFiles) -> None:
        self.client, self.id, self.files = client, application_id, files
        self.staging = f"{files.home}/.dlapp/staging/{application_id}"

    def is_running(self) -> bool:
        return [container.phase for container in self.client.status(self.id).containers] == [Phase.RUNNING]

    def control_secret(self) -> str:
        """Return the secret as its ApplicationMaster has it, in its credentials."""
        # A child that it forks has its command line at first.
        master = min(process.pid for process in processes_of(str(self.id)) if process.role == "am")
        variables = dict(text.partition("=")[::2] for text in Path(f"/proc/{master}/environ").read_text().split("\0"))
        credentials = Credentials.decode(Path(variables["HADOOP_TOKEN_FILE_LOCATION"]).read_bytes())
        return AmPlan.from_credentials(credentials).secrets.control_secret


@pytest.fixture
def submitted(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Submitted]:
    (tmp_path / "values").write_text(f"FROM_A_FILE={VALUE_OF_A_FILE}\n")
    (tmp_path / "values").chmod(0o600)
    of = {"username": OWNER, "env.OPEN": VALUE, "env_file": "values"}
    amounts = {"containers": 1, "memory": "256m", "gcores": None}
    file = properties(tmp_path, WAITS, name="secrets", application=of, resources=amounts)
    client = client_of(hadoop, tmp_path / "submitter", monkeypatch, OWNER)
    files = HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(OWNER)))
    one = Submitted(client, client.submit(str(file)).application_id, files)
    try:
        until(one.is_running)
        yield one
    finally:
        with YarnRest([hadoop.rm_url], Login(OWNER)) as rest:
            rest.kill(one.id, timeout_s=120)
        client.engine.close()
        files.close()


def all_on_hdfs(files: HdfsStagingFiles, location: str) -> Iterator[tuple[str, bytes]]:
    """Each file below a directory, with its content, also under the name that it gets meanwhile."""
    seen: set[str] = set()
    while more := sorted(set(files.names(location)) - seen):
        seen.update(more)
        for name in more:
            place = f"{location}/{name}"
            found = files.status(place)
            if found is not None and not found.is_file:
                yield from all_on_hdfs(files, place)
            elif found is not None:
                with contextlib.suppress(NotFound):  # it was written, and has its own name now
                    yield place, files.read_part(place, 0, found.size_bytes)


def shown(hadoop: Hadoop, application_id: ApplicationId) -> str:
    """Return what YARN's web interfaces show of an application and its containers."""
    base = f"{hadoop.rm_url}/ws/v1/cluster/apps/{application_id}"
    found = [hadoop.get(base), attempts := hadoop.get(f"{base}/appattempts")]
    for item in attempts["appAttempts"]["appAttempt"]:
        found.append(hadoop.get(f"{base}/appattempts/{item['appAttemptId']}/containers"))
    for node in hadoop.get(f"{hadoop.rm_url}/ws/v1/cluster/nodes")["nodes"]["node"]:
        found.append(hadoop.get(f"http://{node['nodeHTTPAddress']}/ws/v1/node/containers"))
    return json.dumps(found)


@pytest.mark.proves("hdfs-secrets")
def test_no_secret_is_on_hdfs_or_shown_during_and_after_a_run(submitted: Submitted, hadoop: Hadoop) -> None:
    secret = submitted.control_secret()
    (task,) = [str(container.container_id) for container in submitted.client.status(submitted.id).containers]
    secrets = [secret, derive_token(secret, TOOLS), derive_token(secret, task), VALUE, VALUE_OF_A_FILE]
    until(lambda: "view.json" in submitted.files.names(submitted.staging))
    ours = f"{submitted.files.home}/.dlapp"
    while_running = dict(all_on_hdfs(submitted.files, ours))
    assert any(place.startswith(submitted.staging) for place in while_running)
    page = shown(hadoop, submitted.id)
    assert task in page
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            page += place.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
    for text in secrets:
        assert [place for place, data in while_running.items() if text.encode() in data] == []
        assert text not in page
    submitted.client.softkill(submitted.id)
    submitted.client.wait(submitted.id, timeout_s=240)
    history = f"{ours}/history/{submitted.id}.json"
    until(lambda: submitted.files.status(submitted.staging) is None)
    afterwards = dict(all_on_hdfs(submitted.files, ours))
    assert history in afterwards
    for text in secrets:
        assert [place for place, data in afterwards.items() if text.encode() in data] == []


@pytest.mark.proves("hdfs-secrets")
def test_the_token_is_kept_by_the_submitter_alone_until_the_end(submitted: Submitted) -> None:
    path = Path(tools_tokens.directory(), f"{submitted.id}.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert json.loads(path.read_text())["token"] == derive_token(submitted.control_secret(), TOOLS)
    submitted.client.kill(submitted.id)
    submitted.client.status(submitted.id)
    assert not path.exists()


@pytest.mark.slow
def test_a_soft_kill_from_another_machine_is_delivered(
    submitted: Submitted, hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = client_of(hadoop, tmp_path / "elsewhere", monkeypatch, OWNER)
    assert tools_tokens.find(submitted.id) is None
    assert elsewhere.status(submitted.id).containers[0].phase is Phase.RUNNING
    assert "stops when it finds the request on HDFS" in elsewhere.softkill(submitted.id)
    end = elsewhere.wait(submitted.id, timeout_s=240)
    assert (end.final_status, end.cause, end.containers[0].exit_code) == (FinalStatus.KILLED, Cause.SOFT_KILLED, 3)
    elsewhere.engine.close()


@pytest.mark.proves("staging-stop")
@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["another user's", "writable by others", "a directory", "too large"])
def test_a_request_that_is_not_the_owners_small_file_is_not_obeyed(
    submitted: Submitted, hadoop: Hadoop, what: str
) -> None:
    for name in ("softkill.json", "kill.json"):
        place, aside = f"{submitted.staging}/{name}", f"{submitted.files.home}/{submitted.id}-{name}"
        files, content = submitted.files, json.dumps({"by": "mallory"}).encode()
        if what == "a directory":
            files.make(place, 0o777)
            continue
        files.write(aside, content + b" " * (10_000 if what == "too large" else 0), 0o600)
        path = aside.removeprefix(hadoop_root(files))
        if what == "another user's":
            put(hadoop, f"{path}?op=SETOWNER&owner=mallory")
        elif what == "writable by others":
            put(hadoop, f"{path}?op=SETPERMISSION&permission=666")
        put(hadoop, f"{path}?op=RENAME&destination={place.removeprefix(hadoop_root(files))}")
    logs = hadoop.directory.glob(f"logs-*/{submitted.id}/container_*_000001/stdout")
    (log,) = list(logs) or list(hadoop.directory.glob(f"**/{submitted.id}/container_*_000001/stdout"))
    until(lambda: len(set(re.findall(r"(\w+)\.json is ignored", log.read_text()))) == 2)
    assert submitted.is_running()


def hadoop_root(files: HdfsStagingFiles) -> str:
    return files.home.rpartition("/user/")[0]


def put(hadoop: Hadoop, path_and_query: str) -> None:
    import urllib.request

    url = f"{hadoop.hdfs_url}/webhdfs/v1{path_and_query}&user.name={OWNER}"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60) as answer:
        assert answer.status == 200


def test_the_control_address_shows_its_view_and_requires_a_token_for_actions(submitted: Submitted) -> None:
    url = json.loads(submitted.files.read(f"{submitted.staging}/am.json", max_bytes=1 << 20))["control_url"]
    with ControlConnection(url) as connection:
        assert connection.call("GET", "/v1/view")["application_id"] == str(submitted.id)
        for word in ("softkill", "kill"):
            with pytest.raises(Denied):
                connection.call("POST", f"/v1/{word}", {"user": OWNER})
    assert submitted.is_running()


@pytest.mark.proves("am-status")
def test_viewing_another_users_application_never_acts_in_their_name(
    submitted: Submitted, hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = client_of(hadoop, tmp_path / "stranger", monkeypatch, "stranger")
    monkeypatch.setattr("dlapp.client.operations.connections.caller", lambda: "stranger")
    names: list[str] = []
    real = Login.as_user

    def as_user(self: Login, user: str) -> Login:
        names.append(user)
        return real(self, user)

    monkeypatch.setattr(Login, "as_user", as_user)
    view = stranger.status(submitted.id)
    # With yarn.acl.enable YARN does not tell strangers where the ApplicationMaster is.
    assert (view.username, view.state) == (OWNER, State.RUNNING)
    for refused in (stranger.kill, stranger.softkill, stranger.engine.submission):
        with pytest.raises(Denied, match=f"belongs to {OWNER}"):
            refused(submitted.id)
    with YarnRest([hadoop.rm_url], Login(OWNER)) as rest:
        rest.kill(submitted.id, timeout_s=120)
    view = stranger.status(submitted.id)
    assert (view.username, view.state) == (OWNER, State.KILLED)
    assert set(names) <= {"stranger"}
    # What is left is its owner's to settle.
    assert submitted.files.status(submitted.staging) is not None
    stranger.engine.close()


# ---- an ApplicationMaster that lies ----


def report_of(user: str, address: str) -> AppReport:
    return AppReport(
        application_id=APP,
        user=user,
        name="theirs",
        queue="default",
        state=State.RUNNING,
        final_status=FinalStatus.UNDEFINED,
        tracking_url="http://rm/proxy",
        raw={"amRPCAddress": address},
    )


class Liar:
    """An ApplicationMaster that answers with anything, and records its requests."""

    def __init__(self, answer: Callable[[], bytes]) -> None:
        self.heard: list[Request] = []
        self._answer = answer
        self.server = ControlServer(self._on_request, admit=lambda *_: Admission(1 << 20, authenticated=True))

    def _on_request(self, request: Request) -> None:
        self.heard.append(request)
        self.server.reply(request, 200, self._answer())

    @property
    def address(self) -> str:
        return f"{self.server.host}:{self.server.port}"


@contextmanager
def reader_without_files(report: AppReport, opened: list[str]) -> Iterator[ApplicationReader]:
    """Tony's, for whom no file opens."""

    def files(user: str) -> Any:
        opened.append(user)
        raise Denied("not yours")

    site = SimpleNamespace(get=lambda _name: None, timeline_url=lambda: None, timeline_reader_url=lambda: None)
    rest = SimpleNamespace(report=lambda _id: report)
    session = SimpleNamespace(
        user="tony",
        files=files,
        rest=lambda: rest,
        site=site,
        hdfs=lambda user: HdfsPlace("hdfs://nn", (), Login(user)),
    )
    masters = AmClients()
    try:
        yield ApplicationReader(session, masters)  # type: ignore[arg-type]
    finally:
        masters.close()


@pytest.mark.proves("am-status")
def test_a_foreign_applicationmaster_does_not_define_the_owner() -> None:
    claimed = ApplicationView(
        application_id=ApplicationId(1, 1),
        attempt=1,
        state=State.FINISHED,
        username="tony",
        submitter="tony",
        containers=(
            ContainerView(container_id="container_1_0001_01_000002", role="w", role_index=0, index=0),  # type: ignore[arg-type]
        ),
    )
    lies = json.dumps(to_json(claimed)).encode()
    liar, opened = Liar(lambda: lies), list[str]()
    with liar.server, reader_without_files(report_of("mallory", liar.address), opened) as one:
        view = one.view(APP)
    assert (view.application_id, view.username, view.submitter) == (APP, "mallory", "mallory")
    assert view.state is State.RUNNING
    assert [request.token for request in liar.heard] == [""]
    assert opened == []


@pytest.mark.parametrize(
    "answer",
    [b"[" * 2_000_000, b'{"a":' * 500_000, b"null", b"{}", b'"' + b"x" * (9 << 20) + b'"', b"\xff\xfe", b"1e999999"],
    ids=["deep lists", "deep objects", "null", "nothing", "more than is read", "no UTF-8", "a number"],
)
def test_answers_of_a_foreign_applicationmaster_do_not_break_the_status(answer: bytes) -> None:
    liar, opened = Liar(lambda: answer), list[str]()
    with liar.server, reader_without_files(report_of("mallory", liar.address), opened) as one:
        view = one.view(APP)
    assert (view.username, view.appname) == ("mallory", "theirs")
    assert opened == []


def test_a_token_is_sent_only_to_the_users_own_applicationmaster() -> None:
    tools_tokens.keep(APP, KeptToken("tony", "0123"))
    liar = Liar(lambda: b"{}")
    with liar.server:
        for user in ("mallory", "tony"):
            with reader_without_files(report_of(user, liar.address), []) as one, contextlib.suppress(Denied):
                one.view(APP)
    assert [request.token for request in liar.heard] == ["", "0123"]


def test_an_aggregated_log_is_read_as_the_caller_whatever_user_a_view_names() -> None:
    opened: list[str] = []
    view = ApplicationView(application_id=APP, attempt=1, state=State.FINISHED, username="tina")
    with reader_without_files(report_of("mallory", ""), opened) as one, pytest.raises(Denied):
        one.aggregated_log(view, None, "stdout")  # type: ignore[arg-type]
    assert opened == ["tony"]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720])
def test_tokens_in_a_directory_that_others_may_write_are_none(mode: int) -> None:
    tools_tokens.keep(APP, KeptToken("tony", "0123"))
    os.chmod(tools_tokens.directory(), mode)
    assert tools_tokens.find(APP) is None
    with pytest.raises(OSError, match=r"others may write there|may be changed by everybody, who may write "):
        tools_tokens.keep(APP, KeptToken("tony", "4567"))


def test_a_token_path_that_is_not_a_regular_file_is_ignored(tmp_path: Path) -> None:
    tools_tokens.keep(APP, KeptToken("tony", "0123"))
    path = Path(tools_tokens.directory(), f"{APP}.json")
    for make in (os.mkfifo, os.mkdir, lambda item: os.symlink(tmp_path / "elsewhere", item)):
        path.unlink()
        (tmp_path / "elsewhere").write_text('{"user": "tony", "token": "89ab"}')
        make(path)
        assert tools_tokens.find(APP) is None
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
        tools_tokens.keep(APP, KeptToken("tony", "0123"))


def test_an_application_of_another_hadoop_user_stays_its_submitters_after_the_end() -> None:
    tools_tokens.keep(APP, KeptToken("production", "0123"))
    tools_tokens.forget(APP, login_user="tony")
    assert tools_tokens.find(APP) == KeptToken("production", "")
    assert tools_tokens.is_own(APP, "production", "tony")
    assert not tools_tokens.is_own(APP, "mallory", "tony")


def test_a_connection_without_a_token_sends_none() -> None:
    liar = Liar(lambda: b"{}")
    with liar.server, ControlConnection(f"http://{liar.address}") as connection:
        connection.call("GET", "/v1/view")
    assert [request.token for request in liar.heard] == [""]
