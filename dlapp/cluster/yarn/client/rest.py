"""Client calls to the ResourceManager's REST interface.

A client needs no Hadoop RPC: submission, reading and killing are available by REST since Hadoop 2.7. YARN's answers are
parsed leniently: a list of one element may come as the element, a missing list as null, a number as text.

Source: Hadoop's ResourceManagerRest.md, RMWebServices; answers of 3.4.2.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urljoin

from dlapp.cluster.yarn.launch_script import inside_double_quotes, shell_command
from dlapp.cluster.yarn.values import Launch, LocalResource
from dlapp.errors import TimedOut, Unreachable
from dlapp.hadoop.errors import ApplicationNotFound, HadoopError, NotAllowed, NotHadoop, RemoteError
from dlapp.hadoop.web import AnswerTooLarge, NoAddress, Web, WrongScheme
from dlapp.login import Login
from dlapp.net.http import HttpResponse
from dlapp.system.clock import backoff_s
from dlapp.system.waits import Wait
from dlapp.value import Closeable, Value, field
from dlapp.values.ids import ApplicationId
from dlapp.values.report import FinalStatus, State
from dlapp.values.serialization import parse_json

SETTING = "yarn.resourcemanager.webapp.address"
KIND = "DLAPP"
"""YARN application type of dlapp's applications."""
KILL_END_S = 60.0
"""Time limit for YARN to end an application."""
ACTIVE_TIMEOUT_S, ASK_TIMEOUT_S = 30.0, 5.0
"""How long to wait until one of several ResourceManagers is active, and for each to report its state. A failover takes
10 to 20 s: the ZooKeeper session expires (yarn.resourcemanager.zk-timeout-ms), and the state is read."""
_CLUSTER = "/ws/v1/cluster"
_APPS = f"{_CLUSTER}/apps"
_MAX_REDIRECTS = 3
MAX_APPLICATIONS = 20_000
"""Limit of one listing: the ResourceManager builds the whole answer before it sends any of it. About 20 MiB."""
MAX_IN_QUEUE = 1_000
"""Limit of the applications read from one queue."""
_UNREAD = "resourceRequests,timeouts,appNodeLabelExpression"
_UNREAD_IN_LISTS = f"{_UNREAD},resourceInfo"
"""Unused fields of an application, left out of answers; the resource requests of a large one take some MiB. Versions
before 2.9 ignore the parameter. Source: DeSelectFields, 2.9.2 to 3.5.0."""
_HANDED_OVER_S = 1.0
"""Time in which a ResourceManager that was active becomes a standby one."""
_MASTER = re.compile(r"/container_(?:e\d+_)?\d+_\d+_(\d{2,9})_\d+(?:/|$)", re.ASCII)
_FEWER = "name one user, or lower yarn.resourcemanager.max-completed-applications"
_KINDS: Mapping[int, type[RemoteError]] = {401: NotAllowed, 403: NotAllowed, 404: ApplicationNotFound}


class NewApplication(Value, kw_only=True):
    """Id for a new submission, and the largest amount of each resource type in one container, by name."""

    application_id: ApplicationId
    largest: dict[str, int]


class AppSubmission(Value, kw_only=True):
    """Submission of one application to YARN.

    Args:
        launch: the command of its ApplicationMaster.
        memory_mib: memory of the ApplicationMaster's container; REST supports only memory and vcores for it.
        attempts: maximum number of ApplicationMaster attempts; the cluster's limit also applies.
        am_node_label: label of the nodes of the ApplicationMaster; empty: the default of the queue.
        tags: at most 10; converted to lower case, as Java's clients do.
    """

    application_id: ApplicationId
    name: str
    launch: Launch
    memory_mib: int
    vcores: int = 1
    queue: str = "default"
    kind: str = KIND
    priority: int | None = None
    attempts: int = 2
    am_node_label: str = ""
    tags: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the body of the request."""
        body: dict[str, Any] = {
            "application-id": str(self.application_id),
            "application-name": self.name,
            "application-type": self.kind,
            "queue": self.queue,
            "am-container-spec": _launch_to_json(self.launch),
            "resource": {"memory": self.memory_mib, "vCores": self.vcores},
            "max-app-attempts": self.attempts,
            "keep-containers-across-application-attempts": True,
            "unmanaged-AM": False,
        }
        if self.priority is not None:
            body["priority"] = self.priority
        if self.am_node_label:
            body["am-container-node-label-expression"] = self.am_node_label
        if self.tags:
            body["application-tags"] = {"tag": [tag.lower() for tag in self.tags]}
        return body


class AppReport(Value, kw_only=True):
    """Report of the ResourceManager on an application at one moment.

    Args:
        tracking_url: URL through YARN's proxy; empty before the ApplicationMaster has registered.
        started_ms: time of submission [ms since 1970]; ``finished_ms`` is 0 until the end.
        priority: None: not reported by this version, or by the timeline server.
        am_node: web address of the node of its ApplicationMaster; empty: no container has been granted for it.
        am_attempt: number of the attempt of that container; 0: there is none.
    """

    application_id: ApplicationId
    user: str
    name: str
    queue: str
    state: State
    final_status: FinalStatus
    diagnostics: str = ""
    tracking_url: str = ""
    started_ms: int = 0
    finished_ms: int = 0
    kind: str = ""
    tags: tuple[str, ...] = ()
    priority: int | None = None
    am_node: str = ""
    am_attempt: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


class EndedApplication(NamedTuple):
    """State of an ended application, and how long ago it ended."""

    state: State
    ago_s: float


class NodeInfo(Value, kw_only=True):
    """Node: ``total`` and ``free`` by resource type (``memory-mb``, ``vcores``, ``gcores``).

    Args:
        labels: its node labels.
    """

    name: str
    web: str
    state: str
    total: dict[str, int]
    health: str = ""
    free: dict[str, int] = field(default_factory=dict)
    labels: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        """Return the host name, without the port of its NodeManager."""
        return self.name.rpartition(":")[0]


class QueueInfo(Value, kw_only=True):
    """Queue: its short name, full path and state, and whether it accepts applications (a leaf queue)."""

    name: str
    path: str
    state: str
    leaf: bool
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


FRESH_S = 1.0
"""How long a ResourceManager counts as active after it said so, where nothing is submitted."""


class YarnRest(Closeable):
    """Client of the ResourceManagers of one cluster; requests go to the active one.

    Args:
        urls: ``http://host:8088``, one for each ResourceManager, in the order in which they are asked.
        login: identity for the requests.
        certificates: CA certificates (PEM) of their web servers; empty: OpenSSL's default.
        timeout_s: for each request.
        keep_active: called with the one of several that was found to be active.
    """

    def __init__(
        self,
        urls: Sequence[str],
        login: Login,
        certificates: str = "",
        *,
        timeout_s: float = 20.0,
        keep_active: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._keep_active = keep_active
        self._urls, self._login = [url.rstrip("/") for url in urls], login
        self._clock, self._sleep = clock, sleep
        self._web = Web(timeout_s, certificates)
        self._short_web = Web(min(timeout_s, ASK_TIMEOUT_S), certificates)
        self._active: str | None = None
        self._active_at = float("-inf")
        self.server_date = ""
        """Return the clock of the last server that answered, from its HTTP header."""

    @property
    def server_time_s(self) -> float | None:
        """Return the clock of the last server that answered, at that time, in seconds [s since 1970]; None: not
        reported."""
        return _seconds_of(self.server_date)

    def cluster_key(self) -> str:
        """Return a name for the cluster, made of its ResourceManagers' addresses.

        A loopback address names another cluster on each machine.
        """
        addresses = sorted(url.rpartition("/")[2] for url in self._urls)
        if any(one.startswith(("localhost", "127.", "[::1]")) for one in addresses):
            addresses.append(os.uname().nodename)
        return hashlib.sha256(" ".join(addresses).encode()).hexdigest()[:16]

    def close(self) -> None:
        """Close the connections."""
        self._web.close()
        self._short_web.close()

    # ---- the cluster ----

    def info(self) -> dict[str, Any]:
        """Return the active ResourceManager's own info: ``resourceManagerVersion``, ``startedOn``, ``haState``.

        Raises:
            Unreachable: the server is not a ResourceManager, or a standby one that knows no active one, or one that is
                still recovering its state after a restart.
        """
        found = as_object(self._call("GET", f"{_CLUSTER}/info").get("clusterInfo"))
        if found.get("haState", "ACTIVE") != "ACTIVE" and len(self._urls) > 1:
            self._active = self._wait_for_active()
            found = as_object(self._call("GET", f"{_CLUSTER}/info").get("clusterInfo"))
        state = found.get("haState", "ACTIVE")
        # A standby ResourceManager answers this request itself instead of redirecting it.
        if state == "STANDBY":
            raise Unreachable(f"{self.active_url()}: {_on_standby(len(self._urls))}")
        if state != "ACTIVE":
            raise Unreachable(f"{self.active_url()}: the ResourceManager is starting ({state}), and not active yet")
        self._active_at = self._clock()
        return found

    def active_url(self) -> str:
        """Return the address of the active ResourceManager.

        Raises:
            Unreachable: none of several was active within `ACTIVE_TIMEOUT_S`.
        """
        if self._active is None:
            self._active = self._urls[0] if len(self._urls) == 1 else self._wait_for_active()
        return self._active

    def _wait_for_active(self) -> str:
        deadline, pauses_s = self._clock() + ACTIVE_TIMEOUT_S, backoff_s(0.2, 2.0)
        with Wait("an active ResourceManager", ACTIVE_TIMEOUT_S) as wait:
            while True:
                try:
                    return self._find_active()
                except Unreachable as error:
                    pause_s = next(pauses_s)
                    if self._clock() + pause_s >= deadline:
                        raise Unreachable(f"no active ResourceManager in {ACTIVE_TIMEOUT_S:g} s: {error}") from error
                    wait.why = str(error)
                self._sleep(pause_s)

    def _find_active(self) -> str:
        """Return the ResourceManager that is active now. Raises Unreachable, with the answer of each."""
        reported = []
        for url in self._urls:
            try:
                answer = self._request("GET", url, f"{_CLUSTER}/info", web=self._short_web)
                state = as_object(answer.get("clusterInfo")).get("haState", "ACTIVE")
            except (Unreachable, RemoteError) as error:
                reported.append(str(error))
                continue
            if state == "ACTIVE":
                self._keep_active(url)
                return url
            reported.append(f"{url}: is {state}")
        raise Unreachable("; ".join(reported))

    def nodes(self, *, running: bool = False) -> list[NodeInfo]:
        """Return all nodes, in any state, or only those that are ``running``."""
        answer = self._call("GET", f"{_CLUSTER}/nodes", {"states": "RUNNING"} if running else None)
        return [_node(one) for one in as_list(as_object(answer.get("nodes")).get("node"))]

    def queues(self) -> list[QueueInfo]:
        """Return all queues, the root first, each before those under it."""
        answer = self._call("GET", f"{_CLUSTER}/scheduler")
        found: list[QueueInfo] = []
        try:
            _walk_queues(as_object(as_object(answer.get("scheduler")).get("schedulerInfo")), "", found)
        except RecursionError as error:
            raise NotHadoop(f"{self.active_url()}: its queues are nested too deeply") from error
        return found

    def node_labels(self) -> list[str]:
        """Return the labels that nodes of the cluster may have; empty if there are none, or not reported."""
        try:
            answer = self._call("GET", f"{_CLUSTER}/get-node-labels")
        except (RemoteError, NotHadoop, ApplicationNotFound):
            return []
        # Hadoop 3.5 wraps it in an outer object.
        found = as_list((as_object(answer.get("nodeLabelsInfo")) or answer).get("nodeLabelInfo"))
        return [name for one in found if (name := str(one.get("name") or ""))]

    def scheduled_types(self) -> set[str] | None:
        """Return the resource types that the scheduler uses; None: not reported by this version (before 3.4)."""
        try:
            answer = self._call("GET", f"{_CLUSTER}/scheduler-overview")
        except (RemoteError, NotHadoop):
            return None
        # Hadoop 3.5 wraps it in an outer object, as in the timeline server's answers.
        reported = (as_object(answer.get("scheduler")) or answer).get("schedulingResourceType")
        # "gcores,memory-mb (unit=Mi),vcores"; older versions write MEMORY and CPU.
        usual = {"memory": "memory-mb", "cpu": "vcores"}
        names = [one.partition("(")[0].strip(" []").lower() for one in str(reported or "").split(",")]
        return {usual.get(name, name) for name in names if name} or None

    def configuration(self, name: str) -> str | None:
        """Return one property of the ResourceManager's configuration; None: no such property."""
        try:
            answer = self._call("GET", "/conf", {"name": name, "format": "json"})
        except (ApplicationNotFound, NotHadoop):  # usually an HTML page
            return None
        # Hadoop 2 returns all properties, whatever was requested.
        for one in [as_object(answer.get("property")), *as_list(answer.get("properties"))]:
            if one.get("key") == name:
                return str(one.get("value", ""))
        return None

    # ---- applications ----

    def new_application(self) -> NewApplication:
        """Return a new id; nothing is submitted yet. Raises Unreachable: no ResourceManager is active."""
        if self._clock() - self._active_at > FRESH_S:
            self.info()
        answer = self._call("POST", f"{_CLUSTER}/apps/new-application")
        return NewApplication(
            application_id=ApplicationId.from_text(str(answer.get("application-id"))),
            largest=amounts(as_object(answer.get("maximum-resource-capability"))),
        )

    def submit(self, submission: AppSubmission) -> None:
        """Submit an application. May be repeated: the answer for a known id is the same as for a new one.

        Errors of its queue or files show up only later, as state FAILED with diagnostics. A ResourceManager without
        high availability accepts applications before it has read its state, and dies when it then finds the same id
        there. So nothing is submitted before it is active. Seen: Hadoop 3.5.0.

        Raises:
            RemoteError: rejected at once: more memory than the maximum, or a tag that is not ASCII.
            Unreachable: no ResourceManager is active, or the answer was lost.
        """
        self.info()
        self._call("POST", f"{_CLUSTER}/apps", body=submission.to_json())

    def report(self, application_id: ApplicationId) -> AppReport:
        """Return the report of one application.

        Raises:
            ApplicationNotFound: the ResourceManager does not know it, or has forgotten it.
            Unreachable: no ResourceManager is active.
        """
        try:
            answer = self._call("GET", f"{_CLUSTER}/apps/{application_id}", {"deSelects": _UNREAD})
        except ApplicationNotFound:
            self.info()  # a starting ResourceManager knows none yet
            raise
        return _report(as_object(answer.get("app")))

    def reports(
        self, *, user: str | None = None, states: Collection[State] = (), kind: str | None = KIND
    ) -> list[AppReport]:
        """Return the applications that the ResourceManager remembers, newest last.

        Args:
            user: only those of this user; None: all users.
            states: only those in one of these states; empty: all.
            kind: only those of this application type; None: all.

        Raises:
            AnswerTooLarge: there are more than `MAX_APPLICATIONS`. With a limit, the ResourceManager does not tell
                which ones it leaves out: it iterates in no order (ClientRMService.getApplications).
        """
        query = {"limit": str(MAX_APPLICATIONS), "deSelects": _UNREAD_IN_LISTS}
        if kind is not None:
            query["applicationTypes"] = kind
        if user is not None:
            query["user"] = user
        if states:
            query["states"] = ",".join(sorted(state.value for state in states))
        answer = self._call("GET", _APPS, query)
        found = [_report(one) for one in as_list(as_object(answer.get("apps")).get("app"))]
        if len(found) >= MAX_APPLICATIONS:
            raise AnswerTooLarge(
                f"{self.active_url()}: the ResourceManager lists more than {MAX_APPLICATIONS} applications, which are "
                f"not read; {_FEWER}"
            )
        return sorted(found, key=lambda report: report.application_id)

    def in_queue(self, queue: str, *, ended_since_ms: int | None = None) -> list[AppReport]:
        """Return the applications of any type in a queue that the caller may see, in order of submission.

        Args:
            queue: its short name.
            ended_since_ms: only those that have ended since then [ms since 1970]; None: only those that have not ended.
        """
        query = {"limit": str(MAX_IN_QUEUE), "queue": queue, "deSelects": _UNREAD}
        if ended_since_ms is None:
            query["states"] = "RUNNING,ACCEPTED"
        else:
            query |= {"states": "FINISHED,FAILED,KILLED", "finishedTimeBegin": str(ended_since_ms)}
        answer = self._call("GET", _APPS, query)
        found = [_report(one) for one in as_list(as_object(answer.get("apps")).get("app"))]
        return sorted(found, key=lambda report: report.application_id)

    def ended_ago_s(self, report: AppReport) -> float:
        """Return how long ago an application ended, by the clock of the answering server; 0 if not reported."""
        if not report.finished_ms:
            return 0.0
        now_s = self.server_time_s
        return (time.time() if now_s is None else now_s) - report.finished_ms / 1000

    def kill(self, application_id: ApplicationId, *, timeout_s: float) -> State:
        """Kill an application and wait for its end; no effect if it has already ended.

        Raises:
            ApplicationNotFound: the ResourceManager does not know it.
            NotAllowed: it is another user's.
            TimedOut: it had not ended within ``timeout_s``; YARN continues to end it.
        """
        deadline = self._clock() + timeout_s
        with Wait(f"the end of {application_id}", timeout_s):
            while not (state := self.report(application_id).state).ended:
                self._call("PUT", f"{_CLUSTER}/apps/{application_id}/state", body={"state": "KILLED"})
                if self._clock() >= deadline:
                    raise TimedOut(f"{application_id} had not ended {timeout_s:g} s after the kill request to YARN")
                self._sleep(0.1)
        return state

    # ---- requests ----

    def _call(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None) -> dict[str, Any]:
        url, is_silent = self.active_url(), True
        try:
            return self._request(method, url, path, query, body)
        except AnswerTooLarge:
            raise
        except NotHadoop:  # it answers, with a page: that a setting is not set, or that it stands by now
            if len(self._urls) == 1:
                raise
            is_silent = False
        except ApplicationNotFound:
            if len(self._urls) == 1:
                raise
            # One that has just ceased to be the active one has forgotten all before it says so; one that was stopped
            # for a while says for a moment that it is still active.
            self._sleep(_HANDED_OVER_S)
        except Unreachable:
            if len(self._urls) == 1:
                raise
        # Another ResourceManager may have become active; a silent one is asked last. Every call here may be repeated.
        self._active, self._urls = None, sorted(self._urls, key=lambda one: is_silent and one == url)
        return self._request(method, self.active_url(), path, query, body)

    def _request(
        self,
        method: str,
        url: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        web: Web | None = None,
    ) -> dict[str, Any]:
        params = {**(query or {}), **self._login.query}
        sent = None if body is None else json.dumps(body).encode()
        try:
            answer = self._sent_on(web or self._web, method, url + path, params, sent)
        except NoAddress as error:
            raise HadoopError(f"{url}: is not a web address; see {SETTING}") from error
        except AnswerTooLarge as error:
            fewer = f"; {_FEWER}" if path == _APPS else "; tell the operator of the ResourceManager"
            raise AnswerTooLarge(f"{url}: {error}, to {method} {path}{fewer}") from error
        except WrongScheme as error:
            raise Unreachable(f"{url}: {error}") from error
        except Unreachable as error:
            raise Unreachable(f"{url}: {error}; see {SETTING}") from error
        if answer is None:
            raise Unreachable(f"{url}: {_on_standby(len(self._urls))}")
        return self._read(method, path, url, answer)

    def _sent_on(
        self, web: Web, method: str, target: str, params: Mapping[str, str], body: bytes | None
    ) -> HttpResponse | None:
        """Return the answer of the active one, to which a standby one redirects; None: it knows none."""
        for _ in range(_MAX_REDIRECTS):
            answer = web.call(method, target, params, body)
            if answer.status != 307:
                return answer
            if not (location := answer.headers.get("location")):
                return None
            target = urljoin(target, location)
            params = {} if "user.name=" in target else params
        return None

    def _read(self, method: str, path: str, url: str, answer: HttpResponse) -> dict[str, Any]:
        self.server_date = answer.headers.get("date")
        if not answer.body and answer.status < 300:
            return {}
        try:
            read: dict[str, Any] | None = as_object(parse_json(answer.body))
        except ValueError:
            read = None
        if answer.status < 300 and read is not None:
            return read
        if answer.status in (401, 403) and read is None:
            raise NotAllowed(f"{url}: {method} {path}", "", f"status {answer.status}")
        reported = as_object((read or {}).get("RemoteException"))
        # Other Hadoop servers answer that the page does not exist; a ResourceManager gives its reason.
        if read is None or (answer.status == 404 and not reported):
            raise NotHadoop(
                f"{url}: it answers with status {answer.status}, and not as a ResourceManager; see {SETTING}"
            )
        message = str(reported.get("message") or f"status {answer.status}").removeprefix("java.lang.Exception: ")
        raise _KINDS.get(answer.status, RemoteError)(
            f"{method} {path}", str(reported.get("javaClassName") or ""), message
        )


def _launch_to_json(launch: Launch) -> dict[str, Any]:
    # The values are those of the RPC message that the ResourceManager builds from them.
    spec: dict[str, Any] = {
        "commands": {"command": shell_command(launch.command)},
        "environment": _entries({name: inside_double_quotes(value) for name, value in launch.environment.items()}),
        "local-resources": _entries({name: _resource_to_json(one) for name, one in launch.resources.items()}),
    }
    if launch.acls:
        spec["application-acls"] = _entries(launch.acls)
    if launch.credentials:
        from dlapp.hadoop.tokens import Credentials

        credentials = Credentials.decode(launch.credentials)
        spec["credentials"] = {
            "tokens": _entries({name: one.to_url() for name, one in credentials.tokens.items()}),
            "secrets": _entries({name: base64.b64encode(one).decode() for name, one in credentials.secrets.items()}),
        }
    return spec


def _entries(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map in the form of Hadoop's JSON. An empty list in it causes an internal error in Hadoop 2.

    Source: seen on 2.7.7 and 2.10.2, whose Jackson2StaxReader does not accept ``[]``.
    """
    return {"entry": [{"key": name, "value": value} for name, value in values.items()]} if values else {}


def _resource_to_json(resource: LocalResource) -> dict[str, Any]:
    return {
        "resource": resource.url,
        "type": "ARCHIVE" if resource.archive else "FILE",
        "visibility": resource.visibility,
        "size": resource.size,
        "timestamp": resource.timestamp_ms,
    }


def read_state(reported: Any, final: FinalStatus, finished_ms: int, tracking_url: str) -> State:
    """Return the state by its name; derive the state of an unknown, newer name from the rest of the report.

    Args:
        reported: the reported name.
        final: the final status.
        finished_ms: when it ended [ms since 1970]; 0: it has not.
        tracking_url: empty: no ApplicationMaster has registered.
    """
    if str(reported) in State.__members__:
        return State(str(reported))
    if final is FinalStatus.UNDEFINED and not finished_ms:
        return State.RUNNING if tracking_url else State.ACCEPTED
    return {FinalStatus.FAILED: State.FAILED, FinalStatus.KILLED: State.KILLED}.get(final, State.FINISHED)


def read_final_status(reported: Any) -> FinalStatus:
    """Return the final status by name; ENDED, of newer versions, means success of several; unknown names become
    None."""
    return FinalStatus(str(reported)) if str(reported) in FinalStatus.__members__ else FinalStatus.UNDEFINED


def _report(raw: dict[str, Any]) -> AppReport:
    final = read_final_status(raw.get("finalStatus"))
    tracking_url, finished_ms = str(raw.get("trackingUrl") or ""), _number(raw.get("finishedTime"))
    return AppReport(
        application_id=ApplicationId.from_text(str(raw.get("id"))),
        user=str(raw.get("user", "")),
        name=str(raw.get("name", "")),
        queue=str(raw.get("queue", "")),
        state=read_state(raw.get("state"), final, finished_ms, tracking_url),
        final_status=final,
        diagnostics=str(raw.get("diagnostics") or ""),
        tracking_url=tracking_url,
        started_ms=_number(raw.get("startedTime")),
        finished_ms=finished_ms,
        kind=str(raw.get("applicationType", "")),
        tags=tuple(tag for tag in str(raw.get("applicationTags") or "").split(",") if tag),
        # Hadoop 3.5 reports -1 for an application without a priority.
        priority=_number(raw["priority"]) if "priority" in raw and _number(raw["priority"]) >= 0 else None,
        am_node=str(raw.get("amHostHttpAddress") or ""),
        am_attempt=_attempt_in(str(raw.get("amContainerLogs") or "")),
        raw=raw,
    )


def _attempt_in(log_url: str) -> int:
    """Return the attempt of the container whose log has this URL; 0: none, or of an unknown form."""
    found = _MASTER.search(log_url)
    return int(found[1]) if found else 0


def _node(raw: dict[str, Any]) -> NodeInfo:
    total = amounts(as_object(raw.get("totalResource")))
    free = {"memory-mb": _number(raw.get("availMemoryMB")), "vcores": _number(raw.get("availableVirtualCores"))}
    free |= amounts(as_object(raw.get("availableResource")))
    if not total:  # Hadoop 2 reports used and free: of memory and vcores, and 2.10 of all types
        used = {"memory-mb": _number(raw.get("usedMemoryMB")), "vcores": _number(raw.get("usedVirtualCores"))}
        used |= amounts(as_object(raw.get("usedResource")))
        total = {name: used.get(name, 0) + amount for name, amount in free.items()}
    labels = raw.get("nodeLabels")
    return NodeInfo(
        name=str(raw.get("id", "")),
        web=str(raw.get("nodeHTTPAddress", "")),
        state=str(raw.get("state", "")),
        total=total,
        health=str(raw.get("healthReport") or ""),
        free=free,
        labels=tuple(one for one in (labels if isinstance(labels, list) else [labels]) if isinstance(one, str)),
    )


def amounts(raw: dict[str, Any]) -> dict[str, int]:
    """Return the amount by resource type; memory in MiB. Hadoop 2 has only memory and vcores."""
    found = {}
    if raw:
        found = {"memory-mb": _number(raw.get("memory")), "vcores": _number(raw.get("vCores"))}
    for one in as_list(as_object(raw.get("resourceInformations")).get("resourceInformation")):
        found.setdefault(str(one.get("name")), _number(one.get("value")))
    return found


def _walk_queues(raw: dict[str, Any], above: str, found: list[QueueInfo]) -> None:
    name = str(raw.get("queueName", ""))
    path = str(raw.get("queuePath") or (f"{above}.{name}" if above else name))
    below = as_list(as_object(raw.get("queues")).get("queue"))
    if name:
        state = str(raw.get("state", "RUNNING"))
        found.append(QueueInfo(name=name, path=path, state=state, leaf=not below, raw=raw))
    for one in below:
        _walk_queues(one, path, found)


def as_object(value: Any) -> dict[str, Any]:
    """Return an object of an answer; empty if there is none."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list of an answer; a list of one may come as the one element."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]


def _number(value: Any) -> int:
    try:
        found = int(value or 0)
    except (TypeError, ValueError, OverflowError):
        return 0
    # Hadoop's numbers are Java longs.
    return found if -(1 << 63) <= found < 1 << 63 else 0


def _on_standby(count: int) -> str:
    if count > 1:
        return "the ResourceManager is on standby, and so are all; make one active (yarn rmadmin -transitionToActive)"
    return "the ResourceManager is on standby; name all of them in yarn.resourcemanager.ha.rm-ids"


def version_of(text: str) -> tuple[int, int]:
    """Return the major and minor number of a version; zeros if it is invalid."""
    parts = text.split(".")
    numbers = [word for word in parts[:2] if word.isascii() and word.isdigit() and len(word) < 10]
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else (0, 0)


def _seconds_of(date: str) -> float | None:
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
