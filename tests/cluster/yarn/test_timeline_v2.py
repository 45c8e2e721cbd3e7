"""Test the reader of Timeline Service v2: what a real one answered, and a real ResourceManager's on a store of files.

``recorded/timeline-v2-3.4.2.json`` has path -> status and JSON of a TimelineReaderServer of Hadoop 3.4.2 on HBase
2.5.8, after three applications of two users; their launch commands are left out. HBase itself is too large for the
tests. The store of files, which comes with Hadoop, has no flows, so its reader knows applications by their ids alone.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from dlapp.client import Client
from dlapp.cluster.yarn.client.rest import KIND, AppReport
from dlapp.cluster.yarn.client.timeline import reader
from dlapp.cluster.yarn.client.timeline.reader import from_timeline
from dlapp.config import load_config
from dlapp.doctor.findings import PASS, WARN, Finding
from dlapp.doctor.yarn import _history
from dlapp.errors import DlappError, NotFound, Unreachable
from dlapp.hadoop.configuration import HadoopConfiguration, read_configuration
from dlapp.login import Login
from dlapp.values.ids import ApplicationId
from dlapp.values.report import FinalStatus, State
from tests.applications import properties
from tests.cluster.yarn.on_yarn import until
from tests.services.hadoop import Hadoop, NoHadoop
from tests.services.http.http_server import Answer, Request, as_json, http_server
from tests.tiers import FULL

RECORDED: dict[str, tuple[int, Any]] = json.loads(
    (Path(__file__).parent / "recorded" / "timeline-v2-3.4.2.json").read_text()
)
FIRST, THIRD, FOURTH, NONE = (ApplicationId(1795885497357, number) for number in (1, 3, 4, 99))
STARTED_MS = {FIRST: 1795885565608, THIRD: 1795885682563, FOURTH: 1795885694484}
OF = {FIRST: "root", THIRD: "bob", FOURTH: "bob"}
LOGIN = Login("tony")
BASE = "/ws/v2/timeline/clusters/yarn_cluster"
FLOWS = "/flows/?limit=500"
V2 = {"yarn.timeline-service.enabled": "true", "yarn.timeline-service.version": "2.0f"}
NODE = "nm1"


def forgotten(url: str, login: Login, **more: Any) -> list[AppReport]:
    """List, however long this machine takes for it."""
    return reader.forgotten(url, login, clock=lambda: 0.0, **more)


def recorded_request(request: Request) -> str:
    """Return the path and query of a request as they were recorded: without the user, and in a fixed order."""
    path, _, query = request.target.partition("?")
    words = [(name, value) for name, value in parse_qsl(query) if name != "user.name"]
    return f"{path.removeprefix(BASE)}?{urlencode(sorted(words))}"


def in_order(target: str) -> str:
    path, _, query = target.partition("?")
    return f"{path.removesuffix('/') if path.startswith('/apps/') else path}?{urlencode(sorted(parse_qsl(query)))}"


@pytest.fixture
def requests() -> list[str]:
    return []


@pytest.fixture
def url(requests: list[str]) -> Iterator[str]:
    """URL of the cluster in a reader that answers what was recorded."""
    answers = {in_order(target): one for target, one in RECORDED.items()}

    def answer(request: Request) -> Answer:
        requests.append(recorded_request(request))
        status, body = answers[requests[-1]]
        return as_json(body, status)

    with http_server(answer) as server:
        yield server + BASE


def known(application_id: ApplicationId) -> AppReport:
    """Return the ResourceManager's report on one of the recorded applications."""
    return AppReport(
        application_id=application_id,
        user=OF[application_id],
        name="",
        queue="",
        state=State.FINISHED,
        final_status=FinalStatus.SUCCEEDED,
        started_ms=STARTED_MS[application_id],
    )


def flow(user: str, name: str, *runs: int) -> dict[str, Any]:
    """Return a row of the list of flows."""
    return {
        "info": {"SYSTEM_INFO_USER": user, "SYSTEM_INFO_FLOW_NAME": name},
        "flowruns": [{"info": {"SYSTEM_INFO_FLOW_RUN_ID": run}} for run in runs],
    }


def entity(number: int, **info: Any) -> dict[str, Any]:
    """Return an ended application of the reader."""
    content = {
        "YARN_APPLICATION_TYPE": KIND,
        "YARN_APPLICATION_STATE": "KILLED",
        "YARN_APPLICATION_FINAL_STATUS": "KILLED",
    }
    return {"id": str(ApplicationId(1, number)), "createdtime": 5, "events": [], "info": content | info}


def test_an_application_of_a_real_reader_has_owner_end_times_and_tags(url: str) -> None:
    found = from_timeline(url, THIRD, LOGIN)
    assert (found.application_id, found.user, found.name, found.queue) == (THIRD, "bob", "a b!c/ü", "root.default")
    assert (found.state, found.final_status) == (State.FINISHED, FinalStatus.FAILED)
    assert found.diagnostics == "container 0 (worker 0) failed: exit code 3"
    assert (found.started_ms, found.finished_ms) == (STARTED_MS[THIRD], 1795885690845)
    assert (found.kind, found.tags) == (KIND, ("x1", "y2"))
    with pytest.raises(NotFound, match=f"{NONE} is not known to YARN, nor to its timeline server"):
        from_timeline(url, NONE, LOGIN)


def test_the_applications_of_all_flows_of_a_real_reader_are_listed(url: str) -> None:
    found = forgotten(url, LOGIN, whose=None, known=())
    assert [(view.application_id, view.user, view.name) for view in found] == [
        (FIRST, "root", "first"),
        (THIRD, "bob", "a b!c/ü"),
        (FOURTH, "bob", "second"),
    ]
    assert [view.final_status.value for view in found] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]


def test_only_flows_of_the_wanted_user_with_runs_that_the_resourcemanager_forgot_are_requested(
    url: str, requests: list[str]
) -> None:
    assert [view.application_id for view in forgotten(url, LOGIN, whose="bob", known=[known(FOURTH)])] == [THIRD]
    assert requests[0] == FLOWS
    assert [request.partition("?")[0] for request in requests[1:]] == ["/users/bob/flows/a%20b%21c%2F%C3%BC/apps/"]
    requests.clear()
    assert forgotten(url, LOGIN, whose=None, known=[known(item) for item in OF]) == []
    assert requests == [FLOWS]


def test_a_list_requests_the_twenty_latest_flows_once_within_its_time() -> None:
    # Two days of each flow; the first by name ran last.
    rows = [flow("tony", f"f{number:02}", 1000 - number - 100 * day) for day in range(2) for number in range(30)]
    paths: list[str] = []

    def answer(request: Request) -> Answer:
        paths.append(request.path)
        number = len(paths)
        return as_json(rows if request.path.endswith("/flows/") else [entity(number)])

    with http_server(answer) as server:
        found = forgotten(server, LOGIN, whose=None, known=())
        assert [path.rpartition("/apps/")[0].rpartition("/")[2] for path in paths[1:]] == [
            f"f{n:02}" for n in range(20)
        ]
        assert len(found) == 20
        paths.clear()
        times = iter([0.0, 0.5, 1.0, 3.0])
        found = reader.forgotten(server, LOGIN, whose=None, known=(), clock=lambda: next(times))
        assert (len(paths), len(found)) == (3, 2)


def test_the_owner_is_read_from_the_key_and_not_from_the_applications_claim() -> None:
    key = f"a*!b!eve*!!f!5!{ApplicationId(1, 7)}"
    forged = entity(7, FROM_ID=key, YARN_APPLICATION_USER="tony")
    with http_server(lambda _: as_json(forged)) as server:
        assert from_timeline(server, ApplicationId(1, 7), LOGIN).user == "eve!"
    for odd in ("", "tony", "a!tony", "*!*!"):
        is_refused = pytest.raises(Unreachable, match="is not the key of an application")
        with http_server(lambda _, odd=odd: as_json(entity(7, FROM_ID=odd))) as server, is_refused:  # type: ignore[misc]
            from_timeline(server, ApplicationId(1, 7), LOGIN)

    def answer(request: Request) -> Answer:
        return as_json([flow("eve", "f", 5)] if request.path.endswith("/flows/") else [forged])

    with http_server(answer) as server:
        assert [item.user for item in forgotten(server, LOGIN, whose=None, known=())] == ["eve"]
        assert forgotten(server, LOGIN, whose="tony", known=()) == []


@pytest.mark.parametrize(
    ("flows", "applications", "numbers"),
    [
        (["odd", None, {}, flow("tony", "f", 5)], [entity(7)], [7]),
        ([flow("tony", "f", 5)], ["odd", None, {"id": "x"}, entity(3, YARN_APPLICATION_TAGS=3), entity(8)], [8]),
        ([flow("tony", "f", 5)], [entity(7, YARN_APPLICATION_TYPE="MAPREDUCE"), entity(8)], [8]),
        # Its end was never reported.
        ([flow("tony", "f", 5)], [entity(7, YARN_APPLICATION_STATE="RUNNING"), entity(8)], [8]),
        ([flow("tony", "f", 5)], {"odd": 1}, []),
        ([flow("tony", "..", 5), {**flow("tony", "f", 5), "flowruns": [{"info": {}}]}], [entity(7)], [7]),
        ([], [entity(7)], []),
    ],
)
def test_an_odd_row_of_the_reader_does_not_hide_the_others(flows: Any, applications: Any, numbers: list[int]) -> None:
    with http_server(lambda asked: as_json(flows if asked.path.endswith("/flows/") else applications)) as server:
        found = forgotten(server, LOGIN, whose="tony", known=())
    assert [view.application_id.number for view in found] == numbers


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (as_json({"message": "java.io.IOException: no\nflows"}, 503), r"status 503: 'java.io.IOException: no\\nflows'"),
        (Answer(403, b"<html>"), "status 403$"),
        (as_json({"flows": []}), "not a list: "),
        (as_json("odd"), "not a list: odd|not a list: 'odd'"),
        (Answer(200, b"[" * 100_000), ""),
    ],
)
def test_a_reader_that_refuses_or_answers_oddly_is_named_with_its_reason(answer: Answer, reason: str) -> None:
    with http_server(lambda _: answer) as server:
        with pytest.raises(Unreachable, match=f"{server}: the timeline server does not list applications: .*{reason}"):
            forgotten(server, LOGIN, whose=None, known=())
        with pytest.raises(Unreachable, match=f"{server}: the timeline server does not answer for {THIRD}: "):
            from_timeline(server, THIRD, LOGIN)


@pytest.mark.parametrize(
    ("settings", "v1", "v2"),
    [
        ({}, True, False),
        ({"yarn.timeline-service.version": "1.5f"}, True, False),
        ({"yarn.timeline-service.version": "2.0"}, False, True),
        ({"yarn.timeline-service.versions": "2.0f"}, False, True),
        ({"yarn.timeline-service.versions": "1.5, 2.0f", "yarn.timeline-service.version": "1.0"}, True, True),
        ({"yarn.timeline-service.version": "2.0f", "yarn.timeline-service.enabled": "false"}, False, False),
    ],
)
def test_the_timeline_server_of_the_configured_version_is_found(settings: dict[str, str], v1: bool, v2: bool) -> None:
    given = {"yarn.timeline-service.enabled": "true", "yarn.timeline-service.hostname": "t", **settings}
    site = HadoopConfiguration(given, "here")
    assert (site.timeline_url(), site.timeline_reader_url()) == (
        "http://t:8188" if v1 else None,
        f"http://t:8188{BASE}" if v2 else None,
    )


def test_the_readers_address_and_the_clusters_id_are_those_of_the_configuration() -> None:
    given = {**V2, "yarn.timeline-service.reader.webapp.address": "r:1", "yarn.resourcemanager.cluster-id": "a/b"}
    assert HadoopConfiguration(given, "here").timeline_reader_url() == "http://r:1/ws/v2/timeline/clusters/a%2Fb"
    secure = {**V2, "yarn.http.policy": "HTTPS_ONLY", "yarn.timeline-service.webapp.https.address": "s:2"}
    assert HadoopConfiguration(secure, "here").timeline_reader_url() == f"https://s:2{BASE}"
    assert HadoopConfiguration(V2, "here").timeline_reader_url() is None


def test_the_doctor_lists_one_flow_or_gives_the_reason() -> None:
    def finding_for(answer: Answer) -> Finding:
        with http_server(lambda _: answer) as server:
            address = server.removeprefix("http://")
            site = HadoopConfiguration({**V2, "yarn.timeline-service.reader.webapp.address": address}, "here")
            (one,) = [finding for finding in _history(site, LOGIN) if finding.subject == "yarn.timeline"]
            return one._replace(found=one.found.replace(server, "SERVER"))

    one = finding_for(as_json([]))
    assert (one.verdict, one.found) == (PASS, f"SERVER{BASE}, Timeline Service v2")
    one = finding_for(as_json({"message": "Unable to get flow info"}, 503))
    message = f"SERVER{BASE} (Timeline Service v2) does not list applications: status 503: Unable to get flow info"
    assert (one.verdict, one.found) == (WARN, message)
    assert "yarn.timeline-service.read.allowed.users" in one.repair
    assert finding_for(Answer(200, b"<html>")).verdict == WARN


if FULL:

    @pytest.fixture(scope="module")
    def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hadoop, Client, Path]]:
        place = tmp_path_factory.mktemp("timeline-v2")
        settings = {
            "yarn-site.xml": {
                "yarn.resourcemanager.max-completed-applications": "1",
                "yarn.timeline-service.read.authentication.enabled": "true",
                "yarn.timeline-service.read.allowed.users": getpass.getuser(),
            }
        }
        try:
            hadoop = Hadoop.start(place / "hadoop", parts=("nn", "dn", "rm", NODE, "reader"), settings=settings)
        except NoHadoop as missing:
            pytest.skip(f"no Hadoop: {missing}")
        options = {
            "cluster": "yarn",
            "yarn.conf_dir": str(hadoop.configuration),
            "yarn.python": sys.executable,
            "local.state_dir": str(place / "state"),
        }
        with hadoop, pytest.MonkeyPatch.context() as patch:
            patch.setenv("HADOOP_USER_NAME", getpass.getuser())
            with Client(load_config(options, environ={})) as client:
                until(shows(lambda: bool(client.engine.node_names())), 120)
                yield hadoop, client, place

    def shows(condition: Callable[[], bool]) -> Callable[[], bool]:
        """Make a condition whose errors of dlapp mean not yet."""

        def holds() -> bool:
            with contextlib.suppress(DlappError):
                return condition()
            return False

        return holds

    @pytest.mark.hadoop
    def test_ends_that_a_real_resourcemanager_forgets_later_are_read(
        cluster: tuple[Hadoop, Client, Path],
    ) -> None:
        hadoop, client, place = cluster
        ids = []
        for number in range(2):
            path = properties(place, f"exit {number}", name=f"app{number}", resources={"memory": "256m"})
            ids.append(client.submit(str(path)).application_id)
            end = client.wait(ids[-1], timeout_s=240)
        with pytest.raises(DlappError, match="still known to the ResourceManager"):
            client.remove([str(ids[1])])

        def is_removed() -> bool:
            client.remove([str(ids[0])])
            return True

        # The ResourceManager forgets it. Without dlapp's own history it is then as another user's.
        until(shows(is_removed))
        stored = hadoop.directory / "timeline-v2" / "entities" / "yarn_cluster"

        def index_files() -> None:
            """Write what the store's reader needs to find an application by its id, which nothing of Hadoop writes: the
            flow of each, and the application under the name that a missing id of an entity becomes."""
            # user/flow/version/run/application
            found = sorted(stored.glob("*/*/*/*/application_*"))
            parts = [item.relative_to(stored).parts for item in found]
            lines = [f"{part[4]},{part[0]},{part[1]},{part[3]}\n" for part in parts]
            (stored / "app_flow_mapping.csv").write_text("".join(lines))
            for item in found:
                (item / "YARN_APPLICATION" / "null.thist").symlink_to(f"{item.name}.thist")

        index_files()
        until(shows(lambda: client.status(ids[0]).state.ended))
        shown = client.status(ids[0])
        assert (shown.username, shown.appname) == (getpass.getuser(), "app0")
        assert (shown.state, shown.final_status) == (State.FINISHED, FinalStatus.SUCCEEDED)
        assert shown.submitted_ms < (shown.finished_ms or 0) < (end.finished_ms or 0)

        site = read_configuration(str(hadoop.configuration))
        url = site.timeline_reader_url()
        assert url == f"{hadoop.timeline_reader_url}{BASE}"
        with pytest.raises(Unreachable, match="status 403"):
            from_timeline(url, ids[0], Login("stranger"))
        # This store has no flows. The list has what else is known.
        assert [view.application_id for view in client.list(everybody=True)] == [ids[1]]
        (one,) = [finding for finding in _history(site, Login(getpass.getuser())) if finding.subject == "yarn.timeline"]
        assert one.verdict == WARN
        assert "does not list applications: status 503: java.io.IOException: Unable to get flow info" in one.found
