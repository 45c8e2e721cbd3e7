"""Test which servers WebHdfs trusts with inode numbers and with reads, by what they say of themselves; no Hadoop."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from dlapp.errors import NotFound, Unreachable, UsageError
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.net.http import HttpResponse, IncompleteResponse
from dlapp.net.http_framing import Headers
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.webhdfs import (
    DataNodeRefused,
    DataNodeUnreachable,
    HdfsRefused,
    HdfsUnreachable,
    ServerRole,
    WebHdfs,
    WrongAnswer,
    calling,
    parse_mounts,
    parse_role,
)
from dlapp.storage.values import DiskFull
from dlapp.system import waits

NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
ROUTER = "org.apache.hadoop.hdfs.server.federation.metrics.NamenodeBeanMetrics"


def bean(kind: str, state: str = "active") -> bytes:
    return json.dumps({"beans": [{"modelerType": kind, "State": state}]}).encode()


def status(number: int, **changed: Any) -> dict[str, Any]:
    found = {"pathSuffix": "", "type": "FILE", "length": 1, "fileId": number, "permission": "644", "owner": "tony"}
    return found | {"modificationTime": 7} | changed


def refused(status: int, kind: str = "IllegalArgumentException") -> HttpResponse:
    body = {"RemoteException": {"exception": kind, "message": "it will not"}}
    return HttpResponse(status, Headers(b""), json.dumps(body).encode(), 0)


KEEPS_NOTHING: dict[str, object] = {
    "LISTSTATUS": refused(400),
    "GETSNAPSHOTTABLEDIRECTORYLIST": {"SnapshottableDirectoryList": None},
    "GETQUOTAUSAGE": {"QuotaUsage": {"quota": -1, "spaceQuota": -1, "typeQuota": {}}},
}
"""Answers about a directory that need not keep its inode."""
MOUNTS: list[dict[str, Any]] = [
    {"sourcePath": "/", "destinations": ["ns0->/"]},
    {"sourcePath": "/spread", "destinations": ["ns0->/spread", "ns1->/spread"], "order": "HASH_ALL"},
    {"sourcePath": "/spread/one", "destinations": ["ns1->/one"]},
    {"sourcePath": "/a/b", "destinations": ["ns1->/b"]},
]
OF_BEFORE_3_1: list[dict[str, Any]] = [
    {"sourcePath": "/", "nameserviceId": "ns0", "path": "/"},
    {"sourcePath": "/spread", "nameserviceId": "ns0", "path": "/spread"},
    {"sourcePath": "/spread", "nameserviceId": "ns1", "path": "/spread"},
    {"sourcePath": "/spread/one", "nameserviceId": "ns1", "path": "/one"},
    {"sourcePath": "/a/b", "nameserviceId": "ns1", "path": "/b"},
]


class Servers:
    """Takes the place of `HttpClient`: what each server answers to each operation, and all that they were asked."""

    def __init__(self, answers: Callable[[str, str], object]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, str]] = []

    def request(self, method: str, server: str, target: str, *_: object, **options: object) -> HttpResponse:
        name = server.removeprefix("http://")
        path, _mark, query = target.removeprefix("/webhdfs/v1").partition("?")
        what = path if path in ("/jmx", "/isActive") else f"{query.partition('op=')[2].partition('&')[0]} {path}"
        answer = self._answers(name, "/mounts" if "MountTable" in query else what)
        self.asked.append((name, what))
        if answer is None:
            body = {"RemoteException": {"exception": "FileNotFoundException", "message": "gone"}}
            return HttpResponse(404, Headers(b""), json.dumps(body).encode(), 0)
        if isinstance(answer, HttpResponse):
            return answer
        body_of = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return HttpResponse(200, Headers(b""), body_of, len(body_of))

    def close(self) -> None:
        pass


def client(answers: Callable[[str, str], object], *names: str) -> tuple[WebHdfs, Servers]:
    """Return a client whose clock goes on while it sleeps, which takes no time."""
    place = HdfsPlace("hdfs://nn", tuple(f"http://{name}" for name in names or ("nn:1",)), Login("tony"))
    now_s = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    web, servers = WebHdfs(place, patience_s=0.1, clock=lambda: now_s, sleep=sleep), Servers(answers)
    web._connections = servers  # type: ignore[assignment]
    return web, servers


@pytest.mark.parametrize("answer", [bean(ROUTER), b'{"beans": []}', b"[]", b"<html>", None], ids=str)
def test_a_server_not_known_as_a_namenode_gets_no_inode_paths(answer: bytes | None) -> None:
    web, servers = client(lambda _, what: answer if what == "/jmx" else {"FileStatus": status(777), "boolean": True})
    web.clear("/ns1/part")
    assert ("nn:1", "DELETE /ns1/part") in servers.asked
    assert not [what for _, what in servers.asked if ".inodes" in what]


@pytest.mark.parametrize("other", [{"length": 2}, {"modificationTime": 8}, {"owner": "ada"}, {"permission": "600"}])
def test_an_inode_number_of_another_file_deletes_nothing(other: dict[str, Any]) -> None:
    def answer(_: str, what: str) -> object:
        if what == "/jmx":
            return bean(NAMENODE)
        return {"FileStatus": status(777, **(other if ".inodes" in what else {})), "boolean": True}

    web, servers = client(answer)
    web.clear("/part")
    assert [what for _, what in servers.asked if what.startswith("DELETE")] == ["DELETE /part"]


def test_inode_numbers_are_verified_and_the_role_is_read_once() -> None:
    web, servers = client(
        lambda _, what: bean(NAMENODE) if what == "/jmx" else {"FileStatus": status(777), "boolean": True}
    )
    web.clear("/part")
    web.clear("/part")
    assert [what for _, what in servers.asked if what.startswith("DELETE")] == ["DELETE /.reserved/.inodes/777"] * 2
    assert servers.asked.count(("nn:1", "/jmx")) == 1


@pytest.mark.parametrize(
    ("state", "words"), [("observer", "an observer, whose answers may be old"), ("standby", "on standby")]
)
def test_only_the_active_one_of_several_namenodes_is_read(state: str, words: str) -> None:
    states = {"nn1": state, "nn2": "active"}
    web, servers = client(
        lambda name, what: bean(NAMENODE, states[name]) if what == "/jmx" else {"FileStatus": status(777)}, "nn1", "nn2"
    )
    for _ in range(2):
        assert web.status("/run") is not None
    assert {name for name, what in servers.asked if what != "/jmx"} == {"nn2"}
    assert servers.asked.count(("nn2", "/jmx")) == 1
    states["nn2"] = state
    web._roles.clear()  # as after a failure
    with pytest.raises(Unreachable, match=f"nn2 is {words}"):
        web.status("/run")


def namesystem(state: str = "active", filesystem: str = "Operational", kind: str = NAMENODE) -> bytes:
    return json.dumps({"beans": [{"modelerType": kind, "State": state, "FSState": filesystem}]}).encode()


@pytest.mark.parametrize(
    ("jmx", "existing", "found"),
    [
        (namesystem(), (), True),
        (namesystem(), ("/user/app",), False),
        (namesystem("standby"), (), None),
        (namesystem("observer"), (), None),
        (namesystem(filesystem="safeMode"), (), None),
        (namesystem(kind=ROUTER), (), None),
        (b'{"beans": []}', (), None),
        (None, (), None),
    ],
)
def test_only_an_active_namenode_out_of_safe_mode_proves_a_removal(
    jmx: bytes | None, existing: tuple[str, ...], found: bool | None
) -> None:
    def answer(_: str, what: str) -> object:
        operation, _, path = what.partition(" ")
        if what == "/jmx":
            return jmx
        return {"FileStatus": status(777)} if operation == "CHECKACCESS" or path in existing else None

    web, _ = client(answer)
    assert web.lacks("/user/app") is found


def test_the_active_one_of_two_namenodes_proves_a_removal() -> None:
    beans = {"nn1": namesystem("standby"), "nn2": namesystem()}

    def answer(name: str, what: str) -> object:
        return beans[name] if what == "/jmx" else {} if what.startswith("CHECKACCESS") else None

    web, servers = client(answer, "nn1", "nn2")
    assert web.lacks("/user/app") is True
    assert {name for name, what in servers.asked if what != "/jmx"} == {"nn2"}
    assert servers.asked[-1] == ("nn2", "CHECKACCESS /user")
    beans["nn2"] = namesystem("standby")
    assert web.lacks("/user/app") is None


def test_a_file_below_a_missing_directory_is_not_proven_gone() -> None:
    web, _ = client(lambda _, what: namesystem() if what == "/jmx" else None)
    with pytest.raises(NotFound):
        web.lacks("/user/app")


@pytest.mark.parametrize(
    "kind", ["StandbyException", "ObserverRetryOnActiveException", "RetriableException", "ConnectException"]
)
def test_a_namenode_that_refuses_to_write_is_passed_over_for_the_active_one(kind: str) -> None:
    web, servers = client(lambda name, _: refused(403, kind) if name == "nn1" else {"boolean": True}, "nn1", "nn2")
    web.make_directory("/run")
    assert servers.asked == [("nn1", "MKDIRS /run"), ("nn2", "MKDIRS /run")]


def test_an_outdated_role_of_a_namenode_is_read_again() -> None:
    states, now = {"nn1": "active", "nn2": "standby"}, [100.0]
    web, servers = client(
        lambda name, what: bean(NAMENODE, states[name]) if what == "/jmx" else {"FileStatus": status(777)}, "nn1", "nn2"
    )
    web._clock = lambda: now[0]
    assert web.status("/run") is not None
    states |= {"nn1": "observer", "nn2": "active"}  # a failover that nobody noticed
    now[0] += 6
    assert web.status("/run") is not None
    assert [name for name, what in servers.asked if what != "/jmx"] == ["nn1", "nn2"]


def test_without_jmx_the_servlet_shows_the_active_namenode() -> None:
    def answer(name: str, what: str) -> object:
        if what == "/jmx":
            return refused(403)
        if what == "/isActive":
            return {"nn1": refused(405), "nn2": b"I am Active!"}[name]
        return {"FileStatus": status(777)}

    web, servers = client(answer, "nn1", "nn2")
    assert web.status("/run") is not None
    assert ("nn1", "GETFILESTATUS /run") not in servers.asked
    silent, _ = client(lambda _, what: refused(404) if what[0] == "/" else {"FileStatus": status(777)}, "nn1", "nn2")
    assert silent.status("/run") is not None


def test_a_gateway_without_inode_numbers_is_refused_by_name() -> None:
    found = status(1)
    del found["fileId"]
    web, servers = client(lambda _, what: {"FileStatus": found, "boolean": True} if what != "/jmx" else b'{"beans":[]}')
    with pytest.raises(WrongAnswer, match=r"has no fileId, as that of HttpFS; .*dfs\.namenode\.http-address"):
        web.status("/run")
    # It would move one directory into the other.
    with pytest.raises(WrongAnswer):
        web.rename("/run.ready", "/run")
    assert not [what for _, what in servers.asked if what.startswith("RENAME")]


def test_an_invalid_role_answer_is_ignored() -> None:
    assert parse_role(bean(NAMENODE, "standby")) == ServerRole(True, "standby")
    for message in (b"", b"{}", b'{"beans": 3}', b'{"beans": [3]}', bean(ROUTER), b'{"beans": [{}, {}]}'):
        assert parse_role(message) == ServerRole()


def test_the_root_of_an_encryption_zone_is_not_replaced() -> None:
    def answer(_: str, what: str) -> object:
        zone = what.endswith((" /zone", "/zone/run"))
        known = KEEPS_NOTHING.get(what.partition(" ")[0])
        return known or {"FileStatus": status(7, type="DIRECTORY", encBit=zone), "boolean": True}

    for target, is_root in (("hdfs://nn/zone", True), ("hdfs://nn/zone/run", False)):
        web, _ = client(answer)
        with pytest.raises(UsageError, match="encryption zone") if is_root else contextlib.nullcontext():
            HdfsFiles(web.place, web).check_writable(target)


@pytest.mark.parametrize("server", ["new", "old", "denies"])
def test_unavailable_directory_policies_are_reported_before_submission(server: str) -> None:
    replaced = {"storagePolicy": 2, "ecBit": True} | ({} if server == "old" else {"ecPolicy": "RS-6-3-1024k"})

    def answer(_: str, what: str) -> object:
        operation, _, path = what.partition(" ")
        if operation in ("SETECPOLICY", "SETSTORAGEPOLICY"):
            assert ".dlapp-probe-" in path
            return {"new": b"", "old": refused(400), "denies": refused(403, "AccessControlException")}[server]
        if operation == "GETSTORAGEPOLICY":
            return refused(400) if server == "old" else {"BlockStoragePolicy": {"name": "COLD"}}
        changed = replaced if path == "/out/run" else {"storagePolicy": 0}
        return KEEPS_NOTHING.get(operation) or {
            "FileStatus": status(7, type="DIRECTORY", **changed),
            "boolean": True,
        }

    web, servers = client(answer)
    lacks = HdfsFiles(web.place, web).check_writable("hdfs://nn/out/run")
    policies = ["storage policy", f"erasure coding policy {'?' if server == 'old' else 'RS-6-3-1024k'}"]
    expected = [] if server == "new" else [f"what replaces it does not get its {policy}" for policy in policies]
    assert [lack.partition(": ")[0] for lack in lacks] == expected
    assert [what for _, what in servers.asked if what.startswith("SETEC")] != []


@pytest.mark.parametrize("table", [MOUNTS, OF_BEFORE_3_1], ids=["lists", "rows"])
def test_below_a_multi_destination_mount_point_no_target_is_replaced(table: list[dict[str, Any]]) -> None:
    def answer(_: str, what: str) -> object:
        if what == "/mounts":
            return {"beans": [{"MountTable": json.dumps(table)}]}
        if what == "/jmx":
            return bean(ROUTER)
        known = KEEPS_NOTHING.get(what.partition(" ")[0])
        return known or {"FileStatus": status(7, type="DIRECTORY"), "boolean": True}

    web, servers = client(answer)
    files = HdfsFiles(web.place, web)
    words = "run is below the mount point /spread of the HDFS Router, which has 2 destinations; dlapp writes only where"
    for overwrite in (True, False):
        with pytest.raises(UsageError, match=words):
            files.check_writable("hdfs://nn/spread/run", overwrite=overwrite)
    with pytest.raises(UsageError, match="/one is a mount point of the HDFS Router"):
        files.check_writable("hdfs://nn/spread/one")
    with pytest.raises(UsageError, match="/a holds /a/b, a mount point of the HDFS Router"):
        files.check_writable("hdfs://nn/a")
    assert not [what for _, what in servers.asked if what.startswith("MKDIRS")]
    files.check_writable("hdfs://nn/spread/one/run")
    files.check_writable("hdfs://nn/spreader/run")


def test_an_invalid_mount_table_has_no_entries() -> None:
    for message in (b"", b"{}", b"<html>", b'{"beans": 3}', b'{"beans": []}', b'{"beans": [{"name": "x"}]}'):
        assert parse_mounts(message) == {}


def test_a_table_of_mount_points_that_cannot_be_read_is_an_error() -> None:
    for message in (b'{"beans": [{"MountTable": 3}]}', b'{"beans": [{"MountTable": "[3]"}]}'):
        with pytest.raises(WrongAnswer, match="sent no table of mount points"):
            parse_mounts(message)


@pytest.mark.parametrize("code", [500, 503])
def test_a_target_is_not_taken_for_one_without_mount_points_by_a_server_that_fails(code: int) -> None:
    failed = HttpResponse(code, Headers(b""), b"", 0)
    web, servers = client(lambda _, what: failed if what == "/mounts" else bean(ROUTER))
    with pytest.raises(HdfsUnreachable, match=rf"nn:1 does not say its mount points \(HTTP {code}\)"):
        HdfsFiles(web.place, web).check_writable("hdfs://nn/spread/run")
    assert not [what for _, what in servers.asked if what.startswith("MKDIRS")]


def test_a_store_probe_makes_at_most_eight_requests_and_leaves_no_file() -> None:
    web, servers = client(storing)
    HdfsFiles(web.place, web).probe_store("hdfs://nn/out.tmp/container_1")
    (probe,) = {what.partition(" ")[2] for _, what in servers.asked if "CREATE" in what}
    assert re.fullmatch(r"/\.reserved/\.inodes/5/commit\.[0-9a-f]{12}", probe)
    begun = [("nn:1", "MKDIRS /out.tmp"), ("nn:1", "GETFILESTATUS /out.tmp"), ("nn:1", "/jmx")]
    written = [("nn:1", f"CREATE {probe}"), ("dn:9", f"CREATE {probe}"), ("nn:1", f"GETFILESTATUS {probe}")]
    number = "/.reserved/.inodes/777"
    assert servers.asked == [*begun, *written, ("nn:1", f"GETFILESTATUS {number}"), ("nn:1", f"DELETE {number}")]


@pytest.mark.parametrize(("silent", "kind"), [("nn:1", HdfsUnreachable), ("dn:9", DataNodeUnreachable)])
def test_unreachable_datanodes_are_distinguished_from_an_unreachable_hdfs(
    silent: str, kind: type[HdfsUnreachable]
) -> None:
    def answer(name: str, what: str) -> object:
        if name == silent:
            raise IncompleteResponse("connection refused", sent=False)
        return storing(name, what)

    web, _ = client(answer)
    with pytest.raises(HdfsUnreachable, match="connection refused") as caught:
        HdfsFiles(web.place, web).probe_store("hdfs://nn/out.tmp/container_1")
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("message", "of_the_node", "tries"),
    [("IOException", True, 4), ("MaxDirectoryItemsExceededException", False, 1)],
)
def test_refusals_of_datanodes_are_distinguished_from_those_of_the_namenode(
    message: str, of_the_node: bool, tries: int
) -> None:
    web, servers = client(lambda name, what: refused(403, message) if name == "dn:9" else storing(name, what))
    web._patience_s = web._first_contact_timeout_s = 60.0
    with pytest.raises(HdfsRefused, match="it will not") as caught:
        HdfsFiles(web.place, web).probe_store("hdfs://nn/out.tmp/container_1")
    assert isinstance(caught.value, DataNodeRefused) == of_the_node
    assert len([name for name, _ in servers.asked if name == "dn:9"]) == tries


def storing(name: str, what: str) -> object:
    """Answer as a NameNode and a DataNode that take a file."""
    if what.startswith("CREATE"):
        head = b"HTTP/1.1 307 x\r\nLocation: http://dn:9/webhdfs/v1/?op=CREATE" if name == "nn:1" else b""
        return HttpResponse(307 if name == "nn:1" else 201, Headers(head), b"", 0)
    if what == "GETFILESTATUS /out.tmp":
        return {"FileStatus": status(5, type="DIRECTORY", permission="700")}
    if what.startswith("GETFILESTATUS"):
        return {"FileStatus": status(777)}
    return bean(NAMENODE) if what == "/jmx" else {"boolean": True}


def test_while_a_call_is_repeated_its_wait_is_shown_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "SHOWN_AFTER_S", 0.0)
    shown: list[str] = []
    web, _ = client(lambda *_: refused(403, "StandbyException"), "nn1", "nn2")
    web._sleep = lambda _: shown.append(waits.longest_text())
    with pytest.raises(HdfsUnreachable):
        web.make_directory("/run")
    assert shown
    when = r"\S{10} \S{8}"
    reason = "nn1 is on standby; nn2 is on standby"
    assert all(re.fullmatch(rf"waits for hdfs://nn since {when}, until {when}: {reason}", item) for item in shown)
    assert waits.longest_text() == ""


def test_a_lack_of_space_is_at_the_path_of_the_user_and_not_at_an_inode() -> None:
    """The path is in the message, and in the text of the wait for space."""
    place = "/.reserved/.inodes/17"
    with pytest.raises(DiskFull, match=r"^/results/tmp/part is full$") as caught, calling(place, "/results/tmp"):
        raise DiskFull(f"{place}/part is full", lack=f"space on the DataNodes for {place}/part")
    assert caught.value.lack == "space on the DataNodes for /results/tmp/part"
