"""Two nameservices and an HDFS Router before them, with DataNodes that are killed while output is stored."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import random
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from dlapp.errors import DlappError
from dlapp.hadoop.configuration import HadoopConfiguration
from dlapp.locations import AUTO, HdfsPlace
from dlapp.login import Login
from dlapp.net.http import HttpClient, HttpResponse
from dlapp.storage import commit
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.native import NativeHdfs
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.storage.hdfs.webhdfs import FileStatus, WebHdfs
from dlapp.values.ids import ContainerId
from tests.services.hadoop import QUICK_TO_NOTICE, ROUTER_ARTIFACTS, Hadoop, java, library
from tests.services.polling import PATIENCE_S
from tests.storage.commit.test_hdfs import APP, old_target, settled, sibling_names

ADMIN = "org.apache.hadoop.hdfs.tools.federation.RouterAdmin"
KILLS = 4
"""DataNodes that are killed in one round, at least one while parts are stored, and one in the commit."""


class Entry(NamedTuple):
    """A file or directory as it is compared; ``checksum`` is that of a file's content."""

    is_dir: bool
    size_bytes: int
    checksum: str
    mode: int
    owner: str
    group: str


class Federation:
    """Two file systems and a router before them: ``/other`` is the second one, ``/spread`` is on both, all else is on
    the first.

    Args:
        stack: ends the servers.
        datanodes: of each file system.
    """

    def __init__(self, stack: ExitStack, datanodes: tuple[str, ...] = ("dn",)) -> None:
        self.datanodes = datanodes
        self.members = [
            stack.enter_context(
                Hadoop.start(parts=("nn", *datanodes), name_cache=name, settings={"hdfs-site.xml": QUICK_TO_NOTICE})
            )
            for name in ("name", "name-2")
        ]
        names = ["ns0", "ns1"]
        settings = {
            "dfs.nameservices": ",".join(names),
            "dfs.federation.router.monitor.namenode": ",".join(names),
            "dfs.federation.router.monitor.localnamenode.enable": "false",
            "dfs.federation.router.default.nameserviceId": "ns0",
            "dfs.federation.router.store.driver.class": (
                "org.apache.hadoop.hdfs.server.federation.store.driver.impl.StateStoreFileImpl"
            ),
            "dfs.federation.router.file.resolver.client.class": (
                "org.apache.hadoop.hdfs.server.federation.resolver.MultipleDestinationMountTableResolver"
            ),
            "dfs.federation.router.cache.ttl": "500ms",
            "dfs.federation.router.heartbeat.interval": "500",
            "dfs.federation.router.safemode.extension": "0",
            "dfs.federation.router.safemode.expiration": "1m",
        }
        for name, one in zip(names, self.members, strict=True):
            settings[f"dfs.namenode.rpc-address.{name}"] = f"127.0.0.1:{one.ports['nn']}"
            settings[f"dfs.namenode.http-address.{name}"] = f"127.0.0.1:{one.ports['nn_http']}"
        self.router = stack.enter_context(
            Hadoop.start(parts=("router",), settings={"hdfs-site.xml": settings}, wait=False)
        )
        self.router._until("the router", self._knows_both, 120)
        for member in range(2):
            self.member(member).make_directory("hdfs://dlapp/spread")
        self.member(1).make_directory("hdfs://dlapp/here")
        self._mount("/other", "ns1", "/")
        self._mount("/spread", "ns0,ns1", "/spread", "-order", "HASH_ALL")
        through = self.through()
        self.router._until("the mounts", lambda: set(through.web.mounts()) == {"/other", "/spread"}, 120)
        self.router._until("the mount", lambda: through.exists("hdfs://dlapp/other/here"), 120)

    def place(self, server: Hadoop, port: str) -> HdfsPlace:
        return HdfsPlace("hdfs://dlapp", (f"http://127.0.0.1:{server.ports[port]}",), Login(getpass.getuser()))

    def member(self, number: int) -> HdfsFiles:
        """Return one of the two file systems, at its NameNode."""
        place = self.place(self.members[number], "nn_http")
        return HdfsFiles(place, WebHdfs(place, patience_s=PATIENCE_S))

    def through(self) -> HdfsFiles:
        """Return both as the router shows them."""
        place = self.place(self.router, "router_http")._replace(protocol=AUTO)
        return HdfsFiles(place, NativeHdfs(place, patience_s=PATIENCE_S))

    def all_of(self, number: int, but: str = "") -> dict[str, Entry]:
        """Return every file and directory of one of the two, by its path.

        Args:
            number: 0 or 1.
            but: name of a directory that is left out.
        """
        files, found = self.member(number), dict[str, Entry]()
        todo = ["/"]
        while todo:
            directory = todo.pop()
            for child in files.web.children(directory):
                path = f"{directory.rstrip('/')}/{child.name}"
                if path == f"/{but}":
                    continue
                content = b"" if child.is_dir else files.web.read_bytes(path, 1 << 28)
                checksum = hashlib.sha256(content).hexdigest()
                found[path] = Entry(child.is_dir, child.size_bytes, checksum, child.mode, child.owner, child.group)
                if child.is_dir:
                    todo.append(path)
        return found

    def configuration(self) -> dict[str, str]:
        """Return what a client has in its configuration that knows both, and no router."""
        first, second = self.members
        return {
            "fs.defaultFS": f"hdfs://127.0.0.1:{first.ports['nn']}",
            "dfs.nameservices": "ns0,ns1",
            "dfs.namenode.rpc-address.ns0": f"127.0.0.1:{first.ports['nn']}",
            "dfs.namenode.http-address.ns0": f"127.0.0.1:{first.ports['nn_http']}",
            "dfs.ha.namenodes.ns1": "gone,nn",
            "dfs.namenode.http-address.ns1.gone": "127.0.0.1:1",
            "dfs.namenode.http-address.ns1.nn": f"127.0.0.1:{second.ports['nn_http']}",
            "dfs.namenode.rpc-address.ns1.nn": f"127.0.0.1:{second.ports['nn']}",
            "fs.viewfs.mounttable.all.link./second": "hdfs://ns1/mounted",
        }

    def configured(self) -> HdfsPlace:
        """Return both as a client without a router has them in its configuration."""
        return HadoopConfiguration(self.configuration(), "here").hdfs(Login(getpass.getuser()))

    def _knows_both(self) -> bool:
        url = f"http://127.0.0.1:{self.router.ports['router_http']}/jmx?qry=Hadoop:service=Router,name=FederationState"
        return str(self.router.get(url)["beans"][0]["Namenodes"]).count("ACTIVE") == 2

    def _mount(self, path: str, nameservices: str, target: str, *options: str) -> None:
        classes = f"{self.router.configuration}:{library()}/*:{library('lib-router', ROUTER_ARTIFACTS)}/*"
        command = [java(), "-Xmx200m", "-XX:TieredStopAtLevel=1", "-cp", classes, ADMIN, "-add", path, nameservices]
        done = subprocess.run([*command, target, *options], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


class KillsDataNodes(HttpClient):
    """Kills a DataNode at some of the requests, while they are on their way, and starts it again.

    Args:
        federation: whose DataNodes.
        moments: the numbers of those requests.
        choose: chooses the DataNode.
    """

    def __init__(self, federation: Federation, moments: set[int], choose: random.Random) -> None:
        super().__init__(5, 60)
        self._federation, self._moments, self._choose = federation, moments, choose
        self._lock, self._killing = threading.Lock(), threading.Lock()
        self.count = self.killed = 0

    def request(self, *arguments: Any, **options: Any) -> HttpResponse:
        with self._lock:
            self.count += 1
            kills = self.count in self._moments
        if not kills:
            return super().request(*arguments, **options)
        killer = threading.Thread(target=self._kill)
        killer.start()
        try:
            return super().request(*arguments, **options)
        finally:
            killer.join()

    def _kill(self) -> None:
        with self._killing:
            member = self._federation.members[self._choose.randrange(2)]
            part = self._choose.choice(self._federation.datanodes)
            member.kill_part(part)
            member.start_part(part)
            self.killed += 1


def prepare(federation: Federation, numbers: int) -> str:
    """Fill both file systems with what no application may change; the name of a directory for tests that is in both.

    Args:
        federation: both.
        numbers: so many files and directories, at least, that are made in the second one from then on get numbers that
            the first one has given before.
    """
    first, second = federation.member(0), federation.member(1)
    foreign = f"/foreign{os.urandom(4).hex()}"
    for number in range(40):
        for one, modes in ((first, (0o644, 0o600)), (second, (0o640, 0o444))):
            one.web.write(f"{foreign}/{number % 7}/{number}", b"of somebody " * number, modes[number % 2])
    first.web._call("SETOWNER", f"{foreign}/3", {"owner": "ann", "group": "research"}, method="PUT")
    last = _last_number(second)
    while (more := last + numbers - _last_number(first)) > 0:
        for _ in range(more):
            first.web.make_directory(f"{foreign}/many/{os.urandom(6).hex()}", 0o700)
    name = f"t{os.urandom(4).hex()}"
    for one in (first, second):
        one.make_directory(f"hdfs://dlapp/{name}")
    return name


def _last_number(files: HdfsFiles) -> int:
    path = f"/last{os.urandom(4).hex()}"
    files.web.make_directory(path)
    found = files.web.status(path)
    assert found is not None
    files.web.delete(path)
    return found.inode_id


def foreign_of(federation: Federation, own: str) -> list[dict[str, Entry]]:
    """Return all of both file systems but what is in the directory ``own`` of each."""
    return [federation.all_of(number, own) for number in range(2)]


def place_of(own: str, seed: int) -> str:
    """Return the directory that is above the target of that seed: of ten, three are in the first file system."""
    return f"hdfs://dlapp/{own}/{seed}" if seed % 10 < 3 else f"hdfs://dlapp/other/{own}/{seed}"


def store_and_commit_while_datanodes_die(
    federation: Federation, own: str, directory: Path, seed: int, *, overwrite: bool = True
) -> int:
    """Store the output of three containers through the router and commit it, with kills at moments of that seed.

    What nothing says is lost must be at the target, whole, or kept beside it under the name that the commit gives.

    Args:
        federation: the file systems.
        own: the directory in both that `prepare` made.
        directory: an empty local one.
        seed: chooses files, moments, DataNodes and the file system of the target.
        overwrite: there is an old target, which the output replaces.

    Returns:
        How many DataNodes were killed.
    """
    choose = random.Random(seed)
    above = place_of(own, seed)
    target, expected = f"{above}/run", dict[str, bytes]()
    for container in range(3):
        (directory / str(container) / "empty").mkdir(parents=True)
        for number in range(8):
            content = choose.randbytes(choose.choice((0, 1, 4096, 200_000, 3 << 20)))
            (directory / str(container) / f"f{number}").write_bytes(content)
            expected[f"{container}/f{number}"] = content
    setup = federation.through()
    setup.make_directory(above)
    old = old_target(setup, target) if overwrite else None
    place = setup.place
    web = WebHdfs(place, patience_s=PATIENCE_S)
    stores = KillsDataNodes(federation, set(choose.sample(range(5, 100), KILLS - 1)), choose)
    web._connections = stores
    files, parts = HdfsFiles(place, web), []
    for container in range(3):
        part = commit.part_location(target, APP, ContainerId(APP, 1, container + 2))
        files.store(str(directory / str(container)), part, replaces=target)
        parts.append((str(container), part))
    web._connections = commits = KillsDataNodes(federation, {choose.randrange(1, 40)}, choose)
    partial = target
    try:
        commit.commit(target, APP, parts, overwrite=overwrite, files=files)
    except DlappError:
        with contextlib.closing(HdfsStagingFiles(place)) as staged:
            view = settled(staged, target, parts, overwrite=overwrite)
        if not view.committed:
            assert view.partial is not None
            partial = view.partial
            assert tree_of_bytes(setup, target) == ({"weights": b"old"} if old else None)
    found = tree_of_bytes(setup, partial)
    assert found is not None
    assert {name: content for name, content in found.items() if not name.endswith("/")} == expected
    assert sibling_names(setup, target) == ([] if partial == target else [partial.rpartition("/")[2]])
    return stores.killed + commits.killed


def tree_of_bytes(files: HdfsFiles, location: str) -> dict[str, bytes] | None:
    """Return the files and directories below a location, with their content; None: nothing is there."""
    path = files.place.path(location)
    if files.web.status(path) is None:
        return None
    return {
        node.name + "/" * node.is_dir: b"" if node.is_dir else files.read_bytes(node.source, 1 << 28)
        for node in files._nodes(path)
        if node.name
    }


def overlapping(federation: Federation, location: str) -> list[FileStatus]:
    """Return what the first file system has under the numbers of a directory that is in the second one."""
    through, first = federation.through(), federation.member(0)
    path = through.place.path(location)
    numbers = [child.inode_id for child in through.web.children(path)]
    found = (first.web.status(f"/.reserved/.inodes/{number}") for number in numbers)
    return [item for item in found if item is not None]
