"""HDFS whose NameNode has its RPC port open, and its web port closed: all that dlapp needs goes by RPC."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.yarn.client.shared_tokens import check_sharing, sharing_tokens
from dlapp.cluster.yarn.staging import StagingPaths
from dlapp.errors import Denied, NotFound
from dlapp.locations import AUTO, NATIVE, WEBHDFS, HdfsPlace
from dlapp.login import Login
from dlapp.net.http import HttpClient
from dlapp.storage import commit
from dlapp.storage.hdfs import native
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.native import NativeHdfs
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.storage.hdfs.webhdfs import HdfsRefused, WebHdfs
from dlapp.values.access import MODIFIERS, VIEWERS, AccessList, derive_token, token_file
from dlapp.values.ids import ContainerId
from dlapp.values.spec import AppSpec
from tests.services.hadoop import IS_HADOOP_2
from tests.storage.commit.test_hdfs import APP, new_tree, old_target, plant, sibling_names, tree

SECRET = "ab" * 32
POLICY = "XOR-2-1-1024k"
Step = Callable[[WebHdfs], object]


@pytest.fixture(params=[NATIVE, AUTO])
def closed(place: HdfsPlace, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> HdfsPlace:
    """The HDFS, whose web port nothing listens on."""
    monkeypatch.setattr(native, "_protocol_states", {})
    monkeypatch.setattr(native, "PROBE_S", 120.0)  # a busy NameNode is not one that does not answer
    return place._replace(web=("http://127.0.0.1:1",), protocol=request.param)


@pytest.fixture
def web_requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requests to that web port."""
    requests, exchange = list[str](), HttpClient.request

    def counted(self: HttpClient, method: str, server: str, target: str, *args: Any, **more: Any) -> Any:
        if server == "http://127.0.0.1:1":
            requests.append(target)
        return exchange(self, method, server, target, *args, **more)

    monkeypatch.setattr(HttpClient, "request", counted)
    return requests


@pytest.fixture
def web(place: HdfsPlace) -> Iterator[WebHdfs]:
    """The NameNode's view of what is there, at its real web port."""
    with contextlib.closing(WebHdfs(place._replace(protocol=WEBHDFS))) as found:
        yield found


def test_only_users_in_view_acl_and_modify_acl_read_their_tokens(
    closed: HdfsPlace, base: str, web_requests: list[str]
) -> None:
    home = closed._replace(homes=base.removeprefix(closed.location))
    spec = AppSpec(
        username="tony",
        appname="a",
        command=("true",),
        view_acl=AccessList(("viola",)),
        modify_acl=AccessList(("moritz",)),
    )
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(contextlib.closing(HdfsStagingFiles(home)))
        theirs = {
            user: stack.enter_context(contextlib.closing(HdfsStagingFiles(home._replace(login=Login(user)))))
            for user in ("viola", "moritz", "stranger")
        }
        files.make(files.home, 0o711)
        assert check_sharing(files, spec) == []
        with sharing_tokens(files, APP, spec, SECRET):
            staging = StagingPaths(files.home).staging(APP)
        for user, purpose in (("viola", VIEWERS), ("moritz", MODIFIERS)):
            token = derive_token(SECRET, purpose).encode()
            assert theirs[user].read(f"{staging}/{token_file(purpose)}", max_bytes=999) == token
            for other in set(theirs) - {user}:
                with pytest.raises(Denied):
                    theirs[other].read(f"{staging}/{token_file(purpose)}", max_bytes=999)
    assert web_requests == []


def test_a_directory_that_is_replaced_passes_on_its_permissions_group_access_list_and_policies(
    closed: HdfsPlace, base: str, web: WebHdfs, web_requests: list[str]
) -> None:
    target, files = f"{base}/run", HdfsFiles(closed)
    path = closed.path(target)
    old_target(files, target)
    files.web.set_mode(path, 0o750)
    files.web.set_group(path, "research")
    entries = ["user::rwx", "user:ada:r-x", "group::r-x", "mask::r-x", "other::---", "default:user:ada:r-x"]
    files.web.set_acl(path, entries)
    files.web._set_storage_policy(path, "ALL_SSD")
    if not IS_HADOOP_2:
        web._call("ENABLEECPOLICY", "/", {"ecpolicy": POLICY}, method="PUT")
        files.web.set_ec_policy(path, POLICY)
    before, acl = web.status(path), web._json("GETACLSTATUS", path)
    assert before is not None
    assert files.check_writable(target) == []
    part = commit.part_location(target, APP, ContainerId(APP, 1, 2))
    files.make_directory(part)
    files.make_directory(f"{part}/d")
    commit.commit(target, APP, [("", part)], overwrite=True, hdfs=closed)
    after = web.status(path)
    assert after is not None
    assert after.inode_id != before.inode_id
    assert [child.name for child in web.children(path)] == ["d"]
    kept_fields = ("mode", "group", "has_acl", "storage_policy", "ec_policy", "owner")
    assert [getattr(after, item) for item in kept_fields] == [getattr(before, item) for item in kept_fields]
    assert (after.group, after.storage_policy, after.ec_policy) == ("research", 12, "" if IS_HADOOP_2 else POLICY)
    assert web._json("GETACLSTATUS", path) == acl
    assert "user:ada:r-x" in str(acl)
    assert "default:user:ada:r-x" in str(acl)
    assert web_requests == []


def test_an_output_of_dlapp_is_known_by_its_attribute_and_replaced(
    closed: HdfsPlace, base: str, web_requests: list[str]
) -> None:
    target, files = f"{base}/run", HdfsFiles(closed)
    for _ in range(2):
        commit.commit(target, APP, plant(files, target, ["0", "1"]), overwrite=True, hdfs=closed)
        assert tree(files, target) == new_tree(["0", "1"])
        assert sibling_names(files, target) == []
    assert web_requests == []


@pytest.mark.skipif(IS_HADOOP_2, reason="WebHDFS of Hadoop 2 sets no quotas")
def test_every_attribute_is_equal_by_rpc_and_webhdfs(
    closed: HdfsPlace, base: str, web: WebHdfs, web_requests: list[str]
) -> None:
    path = closed.path(f"{base}/d")
    with contextlib.closing(NativeHdfs(closed)) as rpc:
        rpc.make_directory(path)
        assert (rpc.attribute(path, "user.dlapp"), rpc.has_quota(path), rpc.with_snapshots(path)) == (None, False, "")
        rpc.set_acl(path, ["user::rwx", "group::r-x", "group:team:-wx", "other::--x", "default:other::r--"])
        rpc.set_attribute(path, "user.dlapp", b"\0old")
        rpc.set_attribute(path, "user.dlapp", b"\0new\xff")
        rpc._set_storage_policy(path, "COLD")
        web._call("SETQUOTA", path, {"namespacequota": "100"}, method="PUT")
        web._call("ALLOWSNAPSHOT", path, method="PUT")
        web._call("CREATESNAPSHOT", path, {"snapshotname": "s"}, method="PUT")
        try:
            found = [
                (item._acl(path), item.attribute(path, "user.dlapp"), item._storage_policy(path), item.has_quota(path))
                for item in (rpc, web)
            ]
            assert found[0] == found[1]
            assert found[0][1:] == (b"\0new\xff", "COLD", True)
            assert len(found[0][0]) >= 3
            assert path in rpc._directories_with_snapshots()
            assert rpc._directories_with_snapshots() == web._directories_with_snapshots()
            assert rpc.with_snapshots(path.rpartition("/")[0]) == path
        finally:
            web._call("DELETESNAPSHOT", path, {"snapshotname": "s"}, method="DELETE")
            web._call("DISALLOWSNAPSHOT", path, method="PUT")
        for step in list[Step](
            [
                lambda item: item.set_acl(f"{path}/none", ["user::rwx", "group::r-x", "other::--x"]),
                lambda item: item.set_attribute(f"{path}/none", "user.dlapp", b"x"),
                lambda item: item._acl(f"{path}/none"),
                lambda item: item.copy_storage_policy(path, f"{path}/none"),
                lambda item: item.set_group(f"{path}/none", "research"),
                lambda item: item.set_ec_policy(f"{path}/none", POLICY),
            ]
        ):
            for item in (rpc, web):
                with pytest.raises(NotFound):
                    step(item)
        for step in list[Step](
            [
                lambda item: item.set_acl(path, ["mask::rwx"]),
                lambda item: item._set_storage_policy(path, "NONE_OF_THESE"),
                lambda item: item.set_ec_policy(path, "NONE-OF-THESE"),
            ]
        ):
            for item in (rpc, web):
                with pytest.raises(HdfsRefused):
                    step(item)
    with contextlib.closing(NativeHdfs(closed._replace(login=Login("stranger")))) as theirs:
        for step in list[Step](
            [
                lambda item: item.set_acl(path, ["user::rwx", "group::r-x", "other::--x"]),
                lambda item: item.set_attribute(path, "user.dlapp", b"x"),
                lambda item: item._set_storage_policy(path, "HOT"),
                lambda item: item.set_group(path, "research"),
            ]
        ):
            with pytest.raises(Denied):
                step(theirs)
    assert web_requests == []


def test_the_state_of_an_application_is_kept_and_proven_to_be_gone(
    closed: HdfsPlace, base: str, tmp_path: Path, web: WebHdfs, web_requests: list[str]
) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(os.urandom(100_000))
    with contextlib.closing(HdfsStagingFiles(closed)) as files:
        files.check_one_destination(f"{base}/staging")
        info = files.send(str(archive), f"{base}/staging/archive", 0o600)
        assert files.read(f"{base}/staging/archive", max_bytes=1 << 20) == archive.read_bytes()
        assert files.write(f"{base}/staging/claim", b"mine", 0o600, once=True)
        assert not files.write(f"{base}/staging/claim", b"theirs", 0o600, once=True)
        assert files.lacks(f"{base}/staging/claim") is False
        files.remove(f"{base}/staging/claim")
        assert files.lacks(f"{base}/staging/claim") is True
        assert web_requests == []
        # How many DataNodes live, only the web port says; as many replicas are asked for as are wanted.
        files.replicate(f"{base}/staging/archive", 3)
        status = web.status(closed.path(f"{base}/staging/archive"))
        assert status is not None
        assert (status.replication, status.mtime_ms) == (3, info.modified_ms)
        # Where the user's home is by the server, only the web port says.
        assert files.home_by_server() == closed.path(closed.home)
    assert {text.partition("?")[0] for text in web_requests} == {"/jmx", "/webhdfs/v1/"}


@pytest.mark.parametrize("mtime_s", [-1_000_000, -0.001, 0, 1.5])
def test_a_file_that_is_older_than_1970_is_stored_with_the_first_time_that_hdfs_has(
    closed: HdfsPlace, base: str, tmp_path: Path, web: WebHdfs, web_requests: list[str], mtime_s: float
) -> None:
    (tmp_path / "old").write_text("old")
    os.utime(tmp_path / "old", (mtime_s, mtime_s))
    HdfsFiles(closed).store(str(tmp_path / "old"), f"{base}/old")
    HdfsFiles(web.place, web).store(str(tmp_path / "old"), f"{base}/by-webhdfs")
    found = [web.status(closed.path(f"{base}/{name}")) for name in ("old", "by-webhdfs")]
    assert [item and item.mtime_ms for item in found] == [max(0, mtime_s * 1000)] * 2
    assert web_requests == []
