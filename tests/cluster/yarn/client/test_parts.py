"""The parts of the client's side that need no cluster: configuration files, the zip, addresses, what is shown."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.cluster.yarn import bundle, task_container
from dlapp.cluster.yarn.client.am_client import AmClients
from dlapp.cluster.yarn.client.local_files import node_cache, tools_tokens
from dlapp.cluster.yarn.client.local_files.last_application import local_cache, remember
from dlapp.cluster.yarn.client.rest import AppReport, YarnRest
from dlapp.cluster.yarn.client.status import ApplicationReader
from dlapp.cluster.yarn.client.timeline.history import forgotten, from_timeline
from dlapp.cluster.yarn.client.views import (
    MAX_TAGS,
    AmState,
    completed_log_url,
    first_line,
    merged,
    tags_of,
    waits_too_long,
)
from dlapp.cluster.yarn.logs.pages import read_page, rest_url
from dlapp.errors import ConfigError, DlappError, Unreachable
from dlapp.hadoop.configuration import HadoopConfiguration, parse_properties, read_configuration
from dlapp.hadoop.errors import ApplicationNotFound
from dlapp.hadoop.hdfs.checksums import CARRIED
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.sweep.spec import Distribution, DistributionKind, Sampler, SweepSpec
from dlapp.value import replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.launch_spec import NODE_MANAGER, ZOOKEEPER, LedgerSettings
from dlapp.values.notification import NotificationSettings
from dlapp.values.report import ApplicationView, Cause, ContainerView, FinalStatus, OutputView, State
from dlapp.values.spec import AppSpec, OnFailure, OutputSpec, RoleSpec, Submission
from tests.cluster.yarn.client.test_cleanup import Memory
from tests.services.http.http_server import as_json, http_server

APP = ApplicationId(1700000000000, 7)
ROOT = Path(__file__).parents[4]


def site(**properties: str) -> HadoopConfiguration:
    return HadoopConfiguration(
        {name.replace("__", "-").replace("_", "."): text for name, text in properties.items()}, "here"
    )


# ---- Hadoop's configuration files ----


def test_addresses_come_from_the_operators_hadoop_files() -> None:
    found = read_configuration(str(ROOT / "docs" / "hadoop"))
    assert found.web_urls() == ["http://resourcemanager.example:8088"]
    assert found.resource_managers("scheduler.address") == ["resourcemanager.example:8030"]
    assert found.timeline_url() == "http://timeline.example:8188"
    where = HdfsPlace("hdfs://namenode.example:8020", ("http://namenode.example:9870",), Login("tony"))
    assert found.hdfs(Login("tony")) == where


@pytest.mark.parametrize(
    ("text", "umask"),
    [("", 0o022), ("077", 0o077), ("0027", 0o027), ("u=rwx,g=rx,o=", 0o027), ("a=rx", 0o222), ("u=rwx,go=", 0o077)],
)
def test_permissions_of_new_directories_are_those_of_the_cluster(text: str, umask: int) -> None:
    properties = {"fs.defaultFS": "hdfs://nn", "fs.permissions.umask-mode": text}
    assert HadoopConfiguration(properties, "here").hdfs(Login("tony")).umask == umask


def test_a_umask_that_hadoop_does_not_have_is_refused_and_protected_directories_are_read() -> None:
    with pytest.raises(ConfigError, match=r"here: fs\.permissions\.umask-mode is 'g-w'"):
        HadoopConfiguration({"fs.defaultFS": "hdfs://nn", "fs.permissions.umask-mode": "g-w"}, "here").hdfs(Login("t"))
    found = HadoopConfiguration({"fs.defaultFS": "hdfs://nn", "fs.protected.directories": "/data/, /user ,"}, "here")
    assert found.hdfs(Login("tony")).protected == ("/data", "/user")


def test_included_files_are_read_in_their_place(tmp_path: Path) -> None:
    def prop(name: str, value: str) -> str:
        return f"<property><name>{name}</name><value>{value}</value></property>"

    def include(href: str, fallback: str = "") -> str:
        inner = f"<xi:fallback>{fallback}</xi:fallback>" if fallback else ""
        return f'<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="{href}">{inner}</xi:include>'

    def parsed(text: str) -> dict[str, str]:
        return parse_properties(f"<configuration>{text}</configuration>".encode(), str(tmp_path / "core-site.xml"))

    (tmp_path / "more").mkdir()
    # As in Hadoop, names in an included file are relative to the first one, too.
    text = prop("fs.defaultFS", "hdfs://ns") + prop("a", "included") + include("more/deeper.xml")
    (tmp_path / "more/ha.xml").write_text(f"<configuration>{text}</configuration>")
    (tmp_path / "more/deeper.xml").write_text(f"<configuration>{prop('b', 'deeper')}</configuration>")
    included = {"fs.defaultFS": "hdfs://ns", "a": "included", "b": "deeper"}
    assert parsed(prop("a", "before") + include("more/ha.xml", prop("a", "not this"))) == included
    assert parsed(include(f"file://{tmp_path}/more/ha.xml") + prop("a", "after"))["a"] == "after"
    assert parsed(include("nowhere.xml", prop("a", "fallback")) + prop("c", "d")) == {"a": "fallback", "c": "d"}
    with pytest.raises(ConfigError, match=r"core-site\.xml:1: includes nowhere\.xml, which is not there"):
        parsed(include("nowhere.xml"))
    with pytest.raises(ConfigError, match=r"includes http://conf/x\.xml; dlapp reads files only"):
        parsed(include("http://conf/x.xml"))
    (tmp_path / "core-site.xml").write_text(f"<configuration>{include('core-site.xml')}</configuration>")
    with pytest.raises(ConfigError, match="the 11th file that includes another one"):
        parsed(include("core-site.xml"))
    with pytest.raises(ConfigError, match=r"includes .*deeper\.xml; more than 100 files are included"):
        parsed(include("more/deeper.xml") * 101)


def test_a_fifo_in_a_configuration_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    include = b'<configuration><xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="fifo"/></configuration>'
    with pytest.raises(ConfigError, match=r"includes .*/fifo: is not a regular file"):
        parse_properties(include, str(tmp_path / "core-site.xml"))
    (tmp_path / "fifo").rename(tmp_path / "core-site.xml")
    with pytest.raises(ConfigError, match=r"core-site\.xml: is not a regular file"):
        read_configuration(str(tmp_path))


def test_home_directories_follow_the_cluster_configuration() -> None:
    properties = {"fs.defaultFS": "hdfs://nn"}
    assert HadoopConfiguration(properties, "here").hdfs(Login("tony")).home == "hdfs://nn/user/tony"
    properties["dfs.user.home.dir.prefix"] = "/homes/all/"
    place = HadoopConfiguration(properties, "here").hdfs(Login("tony"))
    assert (place.home, place.resolve("run")) == ("hdfs://nn/homes/all/tony", "hdfs://nn/homes/all/tony/run")


def test_addresses_are_https_where_yarn_serves_no_plain_http() -> None:
    found = HadoopConfiguration(
        {
            "yarn.http.policy": "HTTPS_ONLY",
            "yarn.resourcemanager.webapp.https.address": "rm:8090",
            "yarn.timeline-service.enabled": "true",
            "yarn.timeline-service.webapp.https.address": "ahs:8190",
        },
        "here",
    )
    assert (found.web_scheme, found.web_urls(), found.timeline_url()) == (
        "https",
        ["https://rm:8090"],
        "https://ahs:8190",
    )


def test_all_of_several_resourcemanagers_are_found() -> None:
    found = HadoopConfiguration(
        {
            "yarn.resourcemanager.ha.enabled": "true",
            "yarn.resourcemanager.ha.rm-ids": "a, b",
            "yarn.resourcemanager.hostname.a": "rm1",
            "yarn.resourcemanager.hostname.b": "rm2",
            "yarn.resourcemanager.webapp.address.b": "rm2:9999",
        },
        "here",
    )
    assert found.web_urls() == ["http://rm1:8088", "http://rm2:9999"]
    assert found.resource_managers("scheduler.address") == ["rm1:8030", "rm2:8030"]


def test_all_namenodes_of_a_nameservice_are_found() -> None:
    found = HadoopConfiguration(
        {
            "fs.defaultFS": "hdfs://ns",
            "dfs.ha.namenodes.ns": "x,y",
            "dfs.namenode.http-address.ns.x": "nn1:9870",
            "dfs.namenode.http-address.ns.y": "nn2:9870",
        },
        "here",
    )
    assert found.hdfs(Login("tony")).web == ("http://nn1:9870", "http://nn2:9870")


def test_references_are_resolved_and_a_circle_is_refused() -> None:
    assert site(a="${b}-${b}", b="x").get("a") == "x-x"
    with pytest.raises(ConfigError, match="refers to itself"):
        site(a="${b}", b="${a}").get("a")


def test_a_missing_cluster_address_is_refused_with_the_property_name() -> None:
    with pytest.raises(ConfigError, match=r"neither yarn.resourcemanager.hostname nor"):
        site().web_urls()
    with pytest.raises(ConfigError, match=r"fs.defaultFS is not set"):
        site().hdfs(Login("tony"))


def test_a_directory_without_the_files_and_a_file_that_is_no_xml_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is none of core-site.xml"):
        read_configuration(str(tmp_path))
    with pytest.raises(ConfigError, match=r"yarn-site.xml:1: is not XML"):
        parse_properties(b"<configuration><property>", "yarn-site.xml")


# ---- dlapp travels ----


@pytest.mark.slow
def test_the_zip_runs_without_an_installation_and_is_built_once(tmp_path: Path) -> None:
    path, name = bundle.packed(str(tmp_path))
    made = os.stat(path)
    assert bundle.packed(str(tmp_path)) == (path, name)
    assert os.stat(path).st_mtime_ns == made.st_mtime_ns
    # Isolated and without site-packages, and yet it finds its libraries; `am` then misses its container.
    done = subprocess.run(
        [sys.executable, "-I", "-S", path, "am", "--engine", "yarn"],
        env={"CONTAINER_ID": "x"},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert (
        done.stderr == "dlapp: HADOOP_TOKEN_FILE_LOCATION is not set: this process was not started by a NodeManager\n"
    )


@pytest.mark.slow
def test_the_archive_has_one_native_part_at_most(tmp_path: Path) -> None:
    archive = zipfile.ZipFile(bundle.packed(str(tmp_path))[0])
    names = archive.namelist()
    sources = zipfile.ZipFile(io.BytesIO(archive.read("sources.zip"))).namelist()
    assert {"__main__.py", "dlapp/__init__.pyc", "modules"} <= set(names)
    assert {"dlapp/__main__.py", "dlapp/runtime/wrapper.sh"} <= set(sources)
    for each in (names, sources):
        native = {name for name in each if name.endswith((".so", ".pyd")) or "__pycache__" in name}
        assert native <= {f"dlapp/hadoop/hdfs/{CARRIED}"}, "a node does without it"
        assert len(each) == len(set(each))


@pytest.mark.slow
def test_an_older_python_gets_a_message_with_the_required_version(tmp_path: Path) -> None:
    # Whatever an old Python cannot read must not be in the first file that it sees.
    source = zipfile.ZipFile(bundle.packed(str(tmp_path))[0]).read("__main__.py").decode()
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.version_info = (3, 6, 8)\n" + source], capture_output=True, text=True
    )
    assert done.returncode == 126
    assert done.stderr.startswith(f"dlapp: {sys.executable} on {os.uname().nodename} is Python 3.")
    assert done.stderr.endswith("and dlapp needs 3.11 or later there: set yarn.python or yarn.python_archive\n")


# ---- what is shown ----


def report(state: State, final: FinalStatus = FinalStatus.UNDEFINED, diagnostics: str = "") -> AppReport:
    return AppReport(
        application_id=APP,
        user="tony",
        name="a",
        queue="root.default",
        state=state,
        final_status=final,
        diagnostics=diagnostics,
        started_ms=5,
        finished_ms=9,
    )


def test_an_application_with_a_dead_applicationmaster_is_not_shown_as_running() -> None:
    view = ApplicationView(application_id=APP, attempt=1, state=State.RUNNING, phase="running 1 of 1")
    shown = merged(report(State.FAILED, FinalStatus.FAILED, "it failed 2 times\nmore"), AmState(view))
    assert (shown.state, shown.cause, shown.phase) == (State.FAILED, Cause.FAILED, "")
    assert (shown.diagnostics, shown.finished_ms) == ("it failed 2 times", 9)


@pytest.mark.parametrize(
    ("final", "finished_ms", "committed", "on_failure", "is_shown"),
    [
        (FinalStatus.FAILED, [8, None], False, OnFailure.KEEP, True),
        (FinalStatus.FAILED, [], False, OnFailure.KEEP, True),
        (FinalStatus.KILLED, [None], False, OnFailure.KEEP, False),
        (FinalStatus.FAILED, [8], False, OnFailure.KEEP, False),
        (FinalStatus.FAILED, [None], True, OnFailure.KEEP, False),
        (FinalStatus.FAILED, [None], False, OnFailure.DROP, False),
    ],
    ids=["died", "in an early view", "killed", "all had ended", "committed", "nothing to keep"],
)
def test_a_dead_applicationmaster_is_shown_with_the_loss_of_unstored_output(
    final: FinalStatus, finished_ms: Sequence[int | None], committed: bool, on_failure: OnFailure, is_shown: bool
) -> None:
    output = OutputSpec(output_path="output", target="hdfs://n/out", on_failure=on_failure)
    spec = AppSpec(
        username="u", appname="a", workspace="/w", script="s", outputs=(output,), roles=(RoleSpec(instances=1),)
    )
    submission = Submission(spec=spec, workspace_archive="", workspace_digest="", submitter="u", submitted_ms=1)
    containers = tuple(
        ContainerView(container_id=ContainerId(APP, 1, n + 2), role="worker", role_index=n, index=n, finished_ms=ms)
        for n, ms in enumerate(finished_ms)
    )
    view = ApplicationView(application_id=APP, attempt=1, state=State.RUNNING, containers=containers)
    outputs = (OutputView(name="", target="hdfs://n/out", committed=committed),)
    state = State.KILLED if final is FinalStatus.KILLED else State.FAILED
    shown = merged(report(state, final, "it ended"), AmState(view, submission, outputs))
    gone = "; what its containers had not stored is gone: YARN deletes a container's directory with the container"
    assert shown.diagnostics == f"it ended{gone if is_shown else ''}"


def test_a_sweep_without_a_view_is_recognized_by_its_submission() -> None:
    draws = Distribution(name="X", kind=DistributionKind.UNIFORM, low=0.0, high=1.0)
    sweep = SweepSpec(sampler=Sampler.RANDOM, trials=3, random=(draws,))
    for given, trials in ((sweep, 3), (None, None)):
        spec = AppSpec(username="u", appname="a", workspace="/w", script="s", roles=(RoleSpec(),), sweep=given)
        submission = Submission(spec=spec, workspace_archive="", workspace_digest="", submitter="u", submitted_ms=1)
        assert merged(report(State.FAILED), AmState(submission=submission)).trials == trials


class NoHdfs:
    """A session of a cluster whose HDFS is away, and whose ResourceManager knows, or has forgotten, an application."""

    user, login = "tony", Login("tony")
    site = SimpleNamespace(timeline_url=lambda: None, timeline_reader_url=lambda: None, get=lambda _: None)

    def __init__(self, report: AppReport | None) -> None:
        self._report = report

    def rest(self) -> SimpleNamespace:
        def report(application_id: ApplicationId) -> AppReport:
            if self._report is None:
                raise ApplicationNotFound("GET", "", "it is not there")
            return self._report

        return SimpleNamespace(report=report, ended_ago_s=lambda _: 60.0)

    def files(self, user: str) -> Memory:
        return Away()


class Away(Memory):
    """A file system that does not answer."""

    def status(self, location: str) -> object:
        raise Unreachable("hdfs://nn: no NameNode answers")

    def read(self, location: str, *, max_bytes: int) -> bytes:
        raise Unreachable("hdfs://nn: no NameNode answers")


@pytest.mark.parametrize(
    ("state", "final", "cause"),
    [(State.FINISHED, FinalStatus.SUCCEEDED, Cause.SUCCEEDED), (State.KILLED, FinalStatus.KILLED, Cause.KILLED)],
)
def test_without_hdfs_yarns_report_is_shown_with_a_note(state: State, final: FinalStatus, cause: Cause) -> None:
    ended = report(state, final, "by an operator")
    reader = ApplicationReader(NoHdfs(ended), AmClients())  # type: ignore[arg-type]
    view = reader.view(APP)
    assert (view.state, view.final_status, view.cause, view.appname) == (state, final, cause, ended.name)
    message = "by an operator; of its containers and output nothing can be read now: hdfs://nn: no NameNode answers"
    assert view.diagnostics == message
    with pytest.raises(Unreachable) as caught:
        reader.logs(APP)
    where = "where its logs are cannot be read now: hdfs://nn: no NameNode answers"
    assert str(caught.value) == f"{APP} is {state.value}, by an operator; {where}"
    with pytest.raises(Unreachable, match="no NameNode answers"):
        ApplicationReader(NoHdfs(None), AmClients()).view(APP)  # type: ignore[arg-type]


def test_the_end_is_only_shown_when_yarn_has_it_on_record() -> None:
    view = ApplicationView(
        application_id=APP, attempt=1, state=State.FINISHED, final_status=FinalStatus.SUCCEEDED, finished_ms=8
    )
    shown = merged(report(State.RUNNING), AmState(view))
    assert (shown.state, shown.final_status, shown.finished_ms) == (State.RUNNING, FinalStatus.UNDEFINED, None)
    assert re.fullmatch(r"ending: reporting to YARN since [-0-9]{10} [:0-9]{8}", shown.phase)


def test_a_list_and_a_status_show_the_same_times() -> None:
    master = ApplicationView(
        application_id=APP,
        attempt=1,
        state=State.FINISHED,
        final_status=FinalStatus.FAILED,
        submitted_ms=3,
        finished_ms=8,
    )
    for state in (State.RUNNING, State.FINISHED):
        of_yarn = report(state, FinalStatus.FAILED)
        seen = [merged(of_yarn, AmState(view)) for view in (None, master)]
        assert len({(item.submitted_ms, item.finished_ms) for item in seen}) == 1


def test_a_list_and_a_status_show_the_labels_of_yarn() -> None:
    of_yarn = replace(report(State.RUNNING), priority=5, tags=("project:cats", "two", "one"))
    master = ApplicationView(
        application_id=APP, attempt=1, state=State.RUNNING, priority=9, project="Cats", tags=("Two", "one")
    )
    listed, seen = (merged(of_yarn, AmState(view)) for view in (None, master))
    for item in (listed, seen):
        assert (item.queue, item.priority, item.project, item.tags) == ("default", 5, "cats", ("one", "two"))
    assert listed.changes == ()
    assert seen.changes == ("priority 9 was asked for, YARN has made it 5 (yarn.cluster.max-application-priority)",)


def test_the_resumed_application_is_known_before_the_applicationmaster_runs() -> None:
    spec = AppSpec(username="u", appname="a", command=("x",), roles=(RoleSpec(),), tags=("Two",), project="Cats")
    resumed = Submission(
        spec=spec, workspace_archive="", workspace_digest="", submitter="u", submitted_ms=1, resumed_from=str(APP)
    )
    queued = replace(report(State.ACCEPTED), tags=tuple(tag.lower() for tag in tags_of(resumed)))
    seen = merged(queued, AmState())
    assert (seen.resumed_from, seen.tags, seen.project) == (str(APP), ("two",), "cats")
    assert merged(replace(queued, tags=("resumed_from:../x",)), AmState()).resumed_from == ""
    full = replace(resumed, spec=replace(spec, tags=tuple(map(str, range(9)))))
    assert len(tags_of(full)) == MAX_TAGS


def test_the_notified_wait_is_known_before_the_applicationmaster_runs() -> None:
    spec = AppSpec(username="u", appname="a", command=("x",), roles=(RoleSpec(),), tags=("Two",), project="Cats")
    given = Submission(spec=spec, workspace_archive="", workspace_digest="", submitter="u", submitted_ms=1)
    notify = NotificationSettings(events=("waiting",), waiting_after_s=59.5, command=("/bin/true",))
    queued = replace(report(State.ACCEPTED), tags=tuple(tag.lower() for tag in tags_of(given, notify)))
    assert [waits_too_long(queued, 5 + ms) for ms in (59_999, 60_000)] == [False, True]
    assert (merged(queued, AmState()).tags, merged(queued, AmState()).project) == (("two",), "cats")
    for nothing in (None, replace(notify, events=("done",))):
        assert tags_of(given, nothing) == tags_of(given)
    full = replace(given, spec=replace(spec, tags=tuple(map(str, range(9)))))
    assert tags_of(full, notify) == tags_of(full), "the user's own tags come first"


@pytest.mark.parametrize(
    "changed",
    [
        {"tags": ()},
        *({"tags": (f"notify_waiting:{text}",)} for text in ("", "-1", "1.5", "x", "²", "1" * 5000)),
        {"state": State.RUNNING},
        {"state": State.KILLED},
        {"started_ms": 0},
        {"raw": {"launchTime": 7}},
        {"raw": {"launchTime": 0, "memorySeconds": 512}},
    ],
    ids=str,
)
def test_no_other_wait_is_notified_before_the_applicationmaster_runs(changed: dict[str, Any]) -> None:
    queued = replace(report(State.ACCEPTED), tags=("notify_waiting:60",), raw={"launchTime": 0, "memorySeconds": 0})
    assert waits_too_long(queued, 10**12)
    assert not waits_too_long(replace(queued, **changed), 10**12)


def test_labels_unknown_to_all_servers_come_from_the_applicationmaster() -> None:
    master = ApplicationView(application_id=APP, attempt=1, state=State.FINISHED, priority=9, project="Cats")
    seen = merged(report(State.FINISHED), AmState(master))
    assert (seen.priority, seen.project, seen.changes) == (9, "cats", ())


@pytest.mark.parametrize(
    ("state", "diagnostics", "shown"),
    [
        (State.FINISHED, "timed out after 3 s, output committed", (State.FINISHED, Cause.TIMED_OUT)),
        (State.FINISHED, "timed out: lifetime limit of the queue, output comm", (State.FINISHED, Cause.TIMED_OUT)),
        (
            State.KILLED,
            "Application is killed by ResourceManager as it has exceeded the lifetime period.",
            (State.KILLED, Cause.TIMED_OUT),
        ),
        (State.FINISHED, "soft-killed by tony before a payload ran", (State.FINISHED, Cause.SOFT_KILLED)),
        (State.FINISHED, "killed by tony, no output kept", (State.KILLED, Cause.KILLED)),
        (State.KILLED, "Application killed by user tony", (State.KILLED, Cause.KILLED)),
    ],
)
def test_a_list_and_a_status_show_the_same_cause_of_a_kill(
    state: State, diagnostics: str, shown: tuple[State, Cause]
) -> None:
    found = merged(replace(report(state, FinalStatus.KILLED), diagnostics=diagnostics), AmState())
    assert (found.state, found.cause) == shown


def test_dlapps_own_line_of_the_diagnostics_counts() -> None:
    assert first_line("[date]Exception from launch\nstderr :\ndlapp: there is no python3 on n1\n") == (
        "dlapp: there is no python3 on n1"
    )
    assert first_line("[date]First\nsecond") == "First"
    assert first_line("[date] Waiting for resources.  Details : AM Partition = <P> ; ") == "Waiting for resources."
    assert first_line("[date] Waiting for resources. Details : AM Partition = <P> ; ") == "Waiting for resources."
    assert first_line("") == ""


PENDING = (
    "[Tue May 25 08:40:24 +0800 2021] Application is added to the scheduler and is not yet activated. Queue's AM "
    "resource limit exceeded.{gap}Details : AM Partition = CORE; AM Resource Request = <memory:896, vCores:1>; Queue "
    "Resource Limit for AM = <memory:0, vCores:0>; User AM Resource Limit of the queue = <memory:0, vCores:0>; "
    "Queue AM Resource Usage = <memory:896, vCores:1>;"
)


@pytest.mark.parametrize("gap", ["  ", " "])
def test_an_application_that_waits_names_its_queue_and_the_limit_of_it(gap: str) -> None:
    waiting = replace(report(State.ACCEPTED, diagnostics=PENDING.format(gap=gap)), queue="root.lab.small")
    assert merged(waiting, AmState()).diagnostics == (
        "Application is added to the scheduler and is not yet activated. Queue's AM resource limit exceeded. (queue "
        "lab.small: AM Resource Request = <memory:896, vCores:1>; Queue Resource Limit for AM = <memory:0, vCores:0>; "
        "User AM Resource Limit of the queue = <memory:0, vCores:0>; "
        "Queue AM Resource Usage = <memory:896, vCores:1>)"
    )
    assert merged(report(State.ACCEPTED, diagnostics="not yet"), AmState()).diagnostics == "not yet"


def test_a_nodes_log_page_is_mapped_to_the_history_server() -> None:
    url = "http://n1:8042/node/containerlogs/container_1_0001_01_000002/tony"
    log_url = "http://t:8188/applicationhistory/logs/n1:8041/container_1_0001_01_000002/container_1_0001_01_000002/tony"
    assert completed_log_url(url, "http://t:8188/applicationhistory/logs/", {"n1:8042": "n1:8041"}) == log_url
    assert completed_log_url(url, "http://t:8188/applicationhistory/logs", {}) == url


def test_the_content_behind_a_page_of_a_log_is_found() -> None:
    assert rest_url("http://n1:8042/node/containerlogs/c1/tony/stdout/?start=-4096") == (
        "http://n1:8042/ws/v1/node/containers/c1/logs/stdout"
    )
    assert rest_url("http://t:8188/applicationhistory/logs/n1:8041/c1/c1/tony/stderr/?start=-4096") == (
        "http://t:8188/ws/v1/applicationhistory/containers/c1/logs/stderr?nm.id=n1:8041"
    )
    text = b"Container: c1\nLogType:stdout\nLogLength:3\nLogContents:\nab\n\nEnd of LogType:stdout"
    assert read_page(text) == (3, b"ab\n\nEnd of LogType:stdout")


# ---- the timeline server ----


ROW = {"appId": str(APP), "type": "DLAPP", "user": "tony", "appState": "KILLED", "finalAppStatus": "KILLED"}
OTHER = ROW | {"appId": "application_1700000000000_0008"}


def timeline(answer: Any) -> AbstractContextManager[str]:
    """Return the context of a server, of the timeline or another, with one answer to everything."""
    return http_server(lambda _: as_json(answer))


@pytest.mark.parametrize(
    ("answer", "numbers"),
    [
        ({"app": [OTHER, ROW]}, [7, 8]),
        ({"app": ROW}, [7]),
        ({}, []),
        ({"app": None}, []),
        # As Hadoop 3.5 says it.
        ({"apps": {"app": [OTHER, ROW]}}, [7, 8]),
        ({"apps": {"app": ROW}}, [7]),
        ({"apps": {}}, []),
        ({"apps": None}, []),
        # Of these only the good one counts.
        ({"app": [{**ROW, "appId": "application_x"}, OTHER]}, [8]),
        ({"app": [{name: ROW[name] for name in ROW if name != "appId"}, OTHER]}, [8]),
        ({"app": ["odd", None, {**ROW, "appState": ["KILLED"]}, OTHER]}, [8]),
        ({"app": [{**ROW, "finishedTime": [1]}, {**ROW, "startedTime": float("inf")}, OTHER]}, [8]),
    ],
)
def test_an_odd_row_of_the_timeline_server_does_not_hide_the_others(answer: Any, numbers: list[int]) -> None:
    with timeline(answer) as url:
        found = forgotten(url, Login("tony"), whose="tony", known=())
    assert [view.application_id.number for view in found] == numbers


@pytest.mark.parametrize("answer", [[], "odd", 3, None, {"app": 3}])
def test_an_odd_answer_of_the_timeline_server_is_none(answer: Any) -> None:
    with timeline(answer) as url, pytest.raises(Unreachable, match=f"{url}: the timeline server does not answer: "):
        forgotten(url, Login("tony"), whose="tony", known=())


@pytest.mark.parametrize("answer", [[], None, {}, {**ROW, "finishedTime": [1]}])
def test_an_odd_answer_of_the_timeline_server_for_one_application_is_none(answer: Any) -> None:
    with timeline(answer) as url, pytest.raises(Unreachable, match=f"does not answer for {APP}: "):
        from_timeline(url, APP, Login("tony"))


@pytest.mark.parametrize("state", ["NEWER", None])
@pytest.mark.parametrize(
    ("rest", "shown"),
    [
        ({"finalStatus": "UNDEFINED", "finishedTime": 0}, State.ACCEPTED),
        ({"finalStatus": "UNDEFINED", "trackingUrl": "http://rm:8088/proxy/a/"}, State.RUNNING),
        ({"finalStatus": "SUCCEEDED", "finishedTime": 9}, State.FINISHED),
        ({"finalStatus": "FAILED"}, State.FAILED),
        ({"finalStatus": "KILLED"}, State.KILLED),
        ({"finalStatus": "NEWER", "finishedTime": 9}, State.FINISHED),
    ],
)
def test_a_state_that_only_a_newer_yarn_knows_does_not_hide_the_others(
    state: str | None, rest: dict[str, Any], shown: State
) -> None:
    known = {"id": OTHER["appId"], "state": "RUNNING"}
    apps = [{"id": str(APP), **rest} | ({"state": state} if state else {}), known]
    with timeline({"apps": {"app": apps}}) as url, YarnRest([url], Login("tony")) as yarn:
        assert [report.state for report in yarn.reports()] == [shown, State.RUNNING]


@pytest.mark.parametrize("inside", [False, True], ids=["3.4", "3.5"])
def test_the_types_that_the_scheduler_counts_are_read_in_every_form(inside: bool) -> None:
    content = {"schedulingResourceType": "[memory-mb (unit=Mi), vcores, gcores]"}
    with timeline({"scheduler": content} if inside else content) as url, YarnRest([url], Login("tony")) as yarn:
        assert yarn.scheduled_types() == {"memory-mb", "vcores", "gcores"}


def test_a_state_that_only_a_newer_timeline_server_knows_is_read_from_the_rest() -> None:
    with timeline({**ROW, "appState": "NEWER"}) as url:
        assert from_timeline(url, APP, Login("tony")).state is State.KILLED


def test_one_application_of_the_timeline_server_is_read_in_the_forms_of_3_4_and_3_5() -> None:
    for answer in (ROW, {"app": ROW}):
        with timeline(answer) as url:
            assert from_timeline(url, APP, Login("tony")).user == "tony"


def test_the_persistent_directory_is_beside_the_users_applications_on_the_same_disk() -> None:
    application = "usercache/tony/appcache/application_1700000000000_0042"
    environ = {"LOCAL_DIRS": f"/disk1/nm/{application},/disk2/nm/{application}"}
    for disk in ("/disk1", "/disk2"):
        here = f"{disk}/nm/{application}/container_1700000000000_0042_01_000002"
        assert task_container.user_directory(environ, here) == f"{disk}/nm/usercache/tony"


def test_on_a_node_only_a_ledger_of_nodemanagers_has_the_address_of_one() -> None:
    """A task that has it says that it waits for the NodeManager, also where it waits for ZooKeeper."""
    environ = {"NM_HOST": "node7", "NM_HTTP_PORT": "8042"}
    zookeeper = LedgerSettings(ZOOKEEPER, ensemble="zk1:2181")
    assert task_container.ledger_of_node(zookeeper, environ) == zookeeper
    of_nodes = LedgerSettings(NODE_MANAGER, web="http://")
    assert task_container.ledger_of_node(of_nodes, environ).web == "http://node7:8042"


def test_a_client_that_only_reads_loads_no_calls_of_an_application_master() -> None:
    program = (
        "import sys\nimport dlapp.client, dlapp.storage.hdfs.staging\nimport dlapp.cluster.yarn.client.engine\n"
        "print(*sorted(one for one in ('dlapp.cluster.yarn.messages', 'requests', 'kazoo') if one in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_cluster_caches_do_not_create_a_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    remember(str(APP), 1)
    node_cache.keep(["http://rm:8088"], [])
    node_cache.keep_active(["http://rm1:8088", "http://rm2:8088"], "http://rm2:8088")
    with pytest.raises(FileNotFoundError, match="this home directory does not exist"):
        tools_tokens.keep(APP, tools_tokens.KeptToken("tony", "t"))
    with pytest.raises(DlappError, match=f"{tmp_path}/home: this home directory does not exist"):
        bundle.packed(local_cache("travel"))
    assert list(tmp_path.iterdir()) == []
