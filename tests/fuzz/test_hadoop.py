"""Fuzz what a ResourceManager, a NodeManager, a timeline server and a NameNode say: RPC, SASL, tokens, REST, WebHDFS."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.yarn import messages
from dlapp.cluster.yarn.client.rest import YarnRest
from dlapp.cluster.yarn.client.timeline import history
from dlapp.cluster.yarn.client.timeline import reader as timeline_reader
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.logs.pages import GrowingPage
from dlapp.cluster.yarn.values import NodeId
from dlapp.errors import DlappError
from dlapp.gpuid.stores.node_manager import assigned
from dlapp.hadoop.configuration import parse_properties
from dlapp.hadoop.connection import Connection
from dlapp.hadoop.framing import FrameReader, encode_frame, split_frame
from dlapp.hadoop.rpc_messages import FATAL, NEGOTIATE, NEGOTIATED, SUCCESS, sasl_message
from dlapp.hadoop.sasl import DigestMd5, Security
from dlapp.hadoop.tokens import Credentials, Token
from dlapp.hadoop.web import Web
from dlapp.hadoop.wire import Fields, encode
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.net.http import HttpResponse
from dlapp.net.http_framing import Headers
from dlapp.storage.hdfs.webhdfs import WebHdfs
from dlapp.values.ids import ApplicationId, ContainerId
from tests.cluster.yarn import server_messages
from tests.fuzz.parsing import fuzz, fuzz_json, limits
from tests.fuzz.samples import APPLICATION, CONTAINER
from tests.fuzz.server import answering
from tests.hadoop.rpc_server import answer_header, sasl_offer
from tests.hadoop.test_tokens import TOKEN, VERSION_0, VERSION_1

LOGIN = Login("tony")

# ---- configuration ----

SITE = (Path(__file__).parent / "corpus" / "core-site.xml").read_bytes()


def test_a_configuration_of_hadoop_is_read_or_refused() -> None:
    fuzz(lambda data: parse_properties(data, "core-site.xml"), [SITE])


def test_a_configuration_of_hadoop_that_grows_by_its_entities_is_refused() -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    text = f'<!DOCTYPE x [<!ENTITY e0 "xxxxxxxxxx">{entities}]><configuration><property><name>&e11;</name></property>'
    with limits(1000):
        try:
            parse_properties(text.encode(), "x")
        except ValueError:
            return
    raise AssertionError("it was read")


# ---- RPC ----


def test_frames_are_split_or_refused() -> None:
    def read(data: bytes) -> None:
        reader = FrameReader(1 << 20)
        for offset in range(0, len(data), 1000):
            reader.feed(data[offset : offset + 1000])
            while (frame := reader.next()) is not None:
                split_frame(frame)

    fuzz(read, [encode_frame(b"header", b"message" * 40) * 2])


def sasl(message: bytes) -> bytes:
    return encode_frame(answer_header(-33, SUCCESS), message)


@pytest.mark.proves("hadoop-limits")
def test_a_connection_of_rpc_is_made_or_refused() -> None:
    challenge = 'realm="default",nonce="abc",qop="auth",charset=utf-8,algorithm=md5-sess'
    offer = sasl(encode((2, NEGOTIATE), (4, sasl_offer("TOKEN", "DIGEST-MD5", challenge))))
    done = sasl(sasl_message(NEGOTIATED, b"rspauth=00"))
    failed = answer_header(-1, FATAL, "java.io.IOException", "no")
    with answering() as server:

        def read(data: bytes) -> None:
            half = data.find(done[:8], 1)
            server.answers = [data] if half < 0 else [data[:half], data[half:]]
            deadline = time.monotonic() + 0.2
            # The samples are refused, too: this server has no password.
            with suppress(DlappError):
                Connection(("127.0.0.1", server.port), "p", proof=TOKEN, deadline=deadline, limit=1 << 20).close()

        fuzz(read, [offer, offer + done, encode_frame(failed)])


def test_a_challenge_of_sasl_is_answered_or_refused() -> None:
    samples = [
        b'realm="default",nonce="abcd",qop="auth,auth-int,auth-conf",cipher="3des,rc4",charset=utf-8,algorithm=md5-sess',
        b'nonce="abc"',
    ]
    fuzz(lambda data: DigestMd5(TOKEN, "c").respond(data), samples)


def test_the_end_of_sasl_is_believed_or_refused() -> None:
    def read(data: bytes) -> None:
        digest = DigestMd5(TOKEN, "c")
        digest.respond(b'nonce="abc"')
        try:
            digest.finish(data)
        except DlappError:
            if data != sample:
                raise

    sample = b"rspauth=00000000000000000000000000000000"
    fuzz(read, [sample])


@pytest.mark.parametrize("seal", [False, True])
def test_a_wrapped_message_is_unwrapped_or_refused(seal: bool) -> None:
    sample = Security(b"k" * 16, seal=seal, server=True).wrap(b"message" * 20)
    fuzz(lambda data: Security(b"k" * 16, seal=seal).unwrap(data), [sample])


def test_credentials_are_read_or_refused() -> None:
    fuzz(Credentials.decode, [VERSION_0, VERSION_1])


def test_a_token_is_read_or_refused() -> None:
    token = Token(b"i" * 20, b"p" * 20, "KIND", "1.2.3.4:8030")
    fuzz(Credentials.decode, [Credentials({"a": token}, {"s": b"x" * 100}).encode()])


# ---- messages ----


def answer_of_allocate() -> bytes:
    node, capability = NodeId("node7", 45454), server_messages.resource(512, 1, [("gcores", 1)])
    return server_messages.allocation(
        3,
        granted=[server_messages.container(CONTAINER, node, capability=capability, priority=1)],
        ended=[server_messages.container_status(CONTAINER, messages.CONTAINER_COMPLETE, 1, "oh")],
        nodes=[server_messages.node_report(node, "/r", capability, messages.NODE_RUNNING)],
        node_count=2,
        preempt=server_messages.preemption([CONTAINER], []),
        node_tokens=[server_messages.node_token(node, TOKEN)],
    )


@pytest.mark.parametrize("dialect", [Dialect.GCORES, Dialect.FIELD3])
def test_an_answer_to_allocate_is_understood_or_refused(dialect: Dialect) -> None:
    fuzz(lambda data: messages.parse_allocation(Fields(data), dialect), [answer_of_allocate()])


def test_an_answer_of_a_node_is_understood_or_refused() -> None:
    failure = server_messages.failure(CONTAINER, "java.io.IOException", "no")
    fuzz(lambda data: messages.parse_started(Fields(data)), [server_messages.started([CONTAINER], [failure])])


# ---- REST ----
# ruff: noqa: E501


class WebWith:
    """Gives one answer to every request."""

    def __init__(self, *_: object, **__: object) -> None:
        self.status = 200

    data = b""

    def __enter__(self) -> WebWith:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def call(self, *_: object, **__: object) -> HttpResponse:
        return HttpResponse(self.status, Headers(b""), self.data, len(self.data))


APP = {
    "id": str(APPLICATION),
    "user": "tony",
    "name": "digits",
    "queue": "root.default",
    "state": "FINISHED",
    "finalStatus": "SUCCEEDED",
    "progress": 100.0,
    "trackingUI": "History",
    "trackingUrl": "http://rm:8088/proxy/x/",
    "diagnostics": "",
    "applicationType": "DLAPP",
    "applicationTags": "a,b",
    "priority": 0,
    "startedTime": 1_700_000_000_000,
    "finishedTime": 1_700_000_001_000,
    "amContainerLogs": "http://node7:8042/node/containerlogs/x/tony",
    "amHostHttpAddress": "node7:8042",
}
AMOUNTS = {
    "memory": 8192,
    "vCores": 8,
    "resourceInformations": {"resourceInformation": [{"name": "gcores", "value": 2, "units": ""}]},
}
QUEUE = {"queueName": "default", "queuePath": "root.default", "state": "RUNNING"}
REST: dict[str, tuple[Callable[[YarnRest], Any], Any]] = {
    "info": (lambda rest: rest.info(), {"clusterInfo": {"haState": "ACTIVE", "resourceManagerVersion": "3.4.2"}}),
    "nodes": (
        lambda rest: rest.nodes(),
        {"nodes": {"node": [{"id": "n:1", "nodeHTTPAddress": "n:2", "rack": "/r", "state": "RUNNING", "nodeLabels": ["a"], "totalResource": AMOUNTS, "usedResource": AMOUNTS}, {"id": "m:1", "usedMemoryMB": 1, "availMemoryMB": 2}]}},
    ),
    "queues": (
        lambda rest: rest.queues(),
        {"scheduler": {"schedulerInfo": {"queueName": "root", "queues": {"queue": [QUEUE, {**QUEUE, "queues": {"queue": QUEUE}}]}}}},
    ),
    "types": (lambda rest: rest.scheduled_types(), {"schedulingResourceType": "gcores,memory-mb (unit=Mi),vcores"}),
    "conf": (lambda rest: rest.configuration("a"), {"property": {"key": "a", "value": "b", "resource": "c"}}),
    "new": (lambda rest: rest.new_application(), {"application-id": str(APPLICATION), "maximum-resource-capability": AMOUNTS}),
    "report": (lambda rest: rest.ended_ago_s(rest.report(APPLICATION)), {"app": APP}),
    "reports": (lambda rest: rest.reports(), {"apps": {"app": [APP, {**APP, "id": "application_1_0002"}]}}),
}  # fmt: skip


@pytest.mark.parametrize("name", REST)
def test_an_answer_of_a_resource_manager_is_understood_or_refused(name: str) -> None:
    ask, sample = REST[name]

    def read(data: bytes) -> None:
        WebWith.data = data
        with YarnRest(["http://rm:8088"], LOGIN) as rest:
            rest._web = WebWith()  # type: ignore[assignment]
            ask(rest)

    fuzz_json(read, [sample])


def test_a_refusal_of_a_resource_manager_is_understood() -> None:
    sample = {"RemoteException": {"exception": "NotFound", "message": "no", "javaClassName": "org.x.NotFoundException"}}
    web = WebWith()

    def read(data: bytes) -> None:
        web.status, WebWith.data = 404, data
        with YarnRest(["http://rm:8088"], LOGIN) as rest:
            rest._web = web  # type: ignore[assignment]
            try:
                rest.report(APPLICATION)
            except DlappError:
                pass
            else:
                raise AssertionError

    fuzz_json(read, [sample], errors=())


HISTORY = {
    "appId": str(APPLICATION),
    "type": "DLAPP",
    "user": "tony",
    "name": "digits",
    "queue": "default",
    "appState": "FINISHED",
    "finalAppStatus": "SUCCEEDED",
    "submittedTime": 1_700_000_000_000,
    "finishedTime": 1_700_000_001_000,
    "trackingUrl": "http://rm:8088",
    "diagnosticsInfo": "",
}


ENTITY = {
    "id": str(APPLICATION),
    "createdtime": 1_700_000_000_000,
    "events": [{"id": "YARN_APPLICATION_FINISHED", "timestamp": 1_700_000_001_000}],
    "info": {
        "FROM_ID": f"yarn_cluster!tony!a*!b!1700000000000!{APPLICATION}",
        "YARN_APPLICATION_TYPE": "DLAPP",
        "YARN_APPLICATION_STATE": "FINISHED",
        "YARN_APPLICATION_FINAL_STATUS": "SUCCEEDED",
        "YARN_APPLICATION_TAGS": ["x"],
    },
}
FLOW = {
    "info": {"SYSTEM_INFO_USER": "tony", "SYSTEM_INFO_FLOW_NAME": "a"},
    "flowruns": [{"info": {"SYSTEM_INFO_FLOW_RUN_ID": 1_700_000_000_000}}],
}


def test_an_answer_of_a_timeline_server_is_understood_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "Web", WebWith)

    def read(data: bytes) -> None:
        WebWith.data = data
        history.from_timeline("http://t:8188", APPLICATION, LOGIN)

    fuzz_json(read, [HISTORY])


def test_the_forgotten_applications_are_understood_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "Web", WebWith)

    def read(data: bytes) -> None:
        WebWith.data = data
        history.forgotten("http://t:8188", LOGIN, whose=None, known=())

    fuzz_json(read, [{"app": [HISTORY, {**HISTORY, "appId": "application_1_0002"}]}])


def test_an_answer_of_a_timeline_reader_is_understood_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_reader, "Web", WebWith)

    def read(data: bytes) -> None:
        WebWith.data = data
        for ask in (
            lambda: timeline_reader.from_timeline("http://t:8188", APPLICATION, LOGIN),
            lambda: timeline_reader.forgotten("http://t:8188", LOGIN, whose=None, known=()),
        ):
            with suppress(DlappError):
                ask()

    fuzz_json(read, [ENTITY, [ENTITY], [FLOW]])


def test_the_gpus_of_a_nodemanager_are_parsed_or_refused() -> None:
    sample = {
        "gpuDeviceInformation": {},
        "assignedGpuDevices": [{"index": 0, "minorNumber": 0, "containerId": str(CONTAINER)}],
    }
    fuzz_json(
        lambda data: assigned(json.loads(data), str(CONTAINER)),
        [sample],
        errors=(DlappError, ValueError, RecursionError),
    )


@pytest.mark.parametrize("text", [str(APPLICATION), str(CONTAINER)])
def test_an_id_is_read_or_refused(text: str) -> None:
    kind = ApplicationId if text == str(APPLICATION) else ContainerId
    fuzz(lambda data: kind.from_text(data.decode("utf-8", "surrogateescape")), [text.encode()])


# ---- HTTP ----

PAGE = b"LogType:stdout\nLogLastModifiedTime:x\nLogLength:5\nLogContents:\nhello\nEnd of LogType:stdout\n"


def http(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", *headers])
    return head.encode() + b"\r\n\r\n" + body


HTTP = [
    http(b'{"a": 1}', "Content-Type: application/json", "Content-Length: 8", "Date: Sun, 22 Nov 2026 18:00:00 GMT"),
    http(b"5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\nTrailer: t\r\n\r\n", "Transfer-Encoding: chunked", "Connection: close"),
    http(b"", "Content-Length: 0", "Location: http://127.0.0.1:1/x", status="307 Temporary Redirect"),
]


def test_an_answer_by_http_is_read_or_refused() -> None:
    with answering() as server:

        def read(data: bytes) -> None:
            server.answers = [data]
            with Web(120.0) as web:
                web.call("GET", f"http://127.0.0.1:{server.port}/x")

        fuzz(read, HTTP)


def test_a_page_of_a_log_is_read_or_refused() -> None:
    samples = [
        http(PAGE, f"Content-Length: {len(PAGE)}"),
        http(b"%x\r\n%s\r\n0\r\n\r\n" % (len(PAGE), PAGE), "Transfer-Encoding: chunked"),
    ]
    with answering() as server:
        url = f"http://127.0.0.1:{server.port}/node/containerlogs/{CONTAINER}/tony/stdout/?start=-4096"

        def read(data: bytes) -> None:
            server.answers = [data]
            with Web(120.0, accept="text/plain") as web:
                b"".join(GrowingPage(url, LOGIN, web).pieces())
                b"".join(GrowingPage(url, LOGIN, web, last_lines=3).pieces(ended=True))

        fuzz(read, samples)


# ---- WebHDFS ----

STATUS = {
    "pathSuffix": "part-0",
    "type": "FILE",
    "length": 5,
    "fileId": 16386,
    "permission": "644",
    "modificationTime": 1_700_000_000_000,
    "owner": "tony",
    "group": "g",
}
WEBHDFS: dict[str, tuple[Callable[[WebHdfs], Any], Any]] = {
    "status": (lambda web: web.status("/a"), {"FileStatus": STATUS}),
    "children": (
        lambda web: web.children("/a"),
        {"FileStatuses": {"FileStatus": [STATUS, {**STATUS, "pathSuffix": "d", "type": "DIRECTORY"}, {**STATUS, "type": "SYMLINK", "symlink": "/x", "pathSuffix": "l"}]}},
    ),
    "delete": (lambda web: web.delete("/a"), {"boolean": True}),
    "rename": (lambda web: web.rename("/a", "/b"), {"boolean": True, "FileStatus": STATUS}),
    "role": (
        lambda web: web.has_inode_paths(),
        {"beans": [{"modelerType": "org.apache.hadoop.hdfs.server.namenode.NameNode", "State": "active"}]},
    ),
    "make": (lambda web: web.make_directory("/a"), {"boolean": True}),
}  # fmt: skip


def webhdfs(answer: HttpResponse) -> WebHdfs:
    class Connections:
        def request(self, *_: object, **__: object) -> HttpResponse:
            return answer

        def close(self) -> None:
            pass

    web = WebHdfs(HdfsPlace("hdfs://nn", ("http://nn:9870",), LOGIN), patience_s=0.0, sleep=lambda _: None)
    web._connections.close()
    web._connections = Connections()  # type: ignore[assignment]
    return web


@pytest.mark.proves("hadoop-limits")
@pytest.mark.parametrize("name", WEBHDFS)
def test_an_answer_of_webhdfs_is_understood_or_refused(name: str) -> None:
    ask, sample = WEBHDFS[name]

    def read(data: bytes) -> None:
        found = ask(webhdfs(HttpResponse(200, Headers(b""), data, len(data))))
        for item in found if name == "children" else ():
            assert "/" not in item.name, item.name
            assert "\0" not in item.name
            assert item.name not in ("", ".", "..")

    fuzz_json(read, [sample])


def test_a_refusal_of_webhdfs_is_understood() -> None:
    sample = {"RemoteException": {"exception": "StandbyException", "message": "no", "javaClassName": "x"}}

    def read(data: bytes) -> None:
        try:
            webhdfs(HttpResponse(403, Headers(b""), data, len(data))).children("/a")
        except DlappError:
            return
        raise AssertionError

    fuzz_json(read, [sample], errors=())


def test_a_redirection_of_webhdfs_is_followed_or_refused() -> None:
    def read(data: bytes) -> None:
        web = webhdfs(HttpResponse(307, Headers(b"\r\nLocation: " + data), b"", 0))
        web._datanode("OPEN", "/a", set(), direct_to_datanode=False)

    fuzz(read, [b"http://node7:9864/webhdfs/v1/a?op=OPEN&namenoderpcaddress=nn:8020&offset=0"])
