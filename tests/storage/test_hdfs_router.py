"""Two nameservices: a client that knows both, and a Router before them.

A commit behind the Router, where inode numbers overlap, leaves the other one alone.
"""

from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dlapp.hadoop.configuration import HadoopConfiguration
from dlapp.ids import ContainerId
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.serialization import from_json, to_json
from dlapp.storage import commit
from dlapp.storage.hdfs import HdfsFiles
from dlapp.storage.hdfs_staging import HdfsStagingFiles
from dlapp.storage.open import open_output, plan_fetch
from dlapp.storage.webhdfs import INODES
from tests.services.hadoop import ROUTER_ARTIFACTS, Hadoop, NoHadoop, java, library
from tests.storage.commit.test_hdfs import APP, beside, new_tree, old_target, plant, settled, tree

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]
ADMIN = "org.apache.hadoop.hdfs.tools.federation.RouterAdmin"


class Federation:
    """Two file systems and a router before them: ``/other`` is the second one, all else the first."""

    def __init__(self, stack: ExitStack) -> None:
        self.members = [stack.enter_context(Hadoop.start(parts=("nn", "dn"), kept=name)) for name in ("name", "name-2")]
        names = ["ns0", "ns1"]
        settings = {
            "dfs.nameservices": ",".join(names),
            "dfs.federation.router.monitor.namenode": ",".join(names),
            "dfs.federation.router.monitor.localnamenode.enable": "false",
            "dfs.federation.router.default.nameserviceId": "ns0",
            "dfs.federation.router.store.driver.class": (
                "org.apache.hadoop.hdfs.server.federation.store.driver.impl.StateStoreFileImpl"
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
        self.router._until("the router", self._knows_both, 60)
        self._mount()

    def place(self, server: Hadoop, port: str) -> HdfsPlace:
        return HdfsPlace("hdfs://dlapp", (f"http://127.0.0.1:{server.ports[port]}",), Login(getpass.getuser()))

    def all_of(self, number: int) -> dict[str, bytes]:
        """Every file of one of the two, and every directory."""
        files = HdfsFiles(self.place(self.members[number], "nn_http"))
        found = {}
        for node in files._nodes("/"):
            found[node.name] = b"/" if node.is_dir else files.web.read_bytes(f"/{node.name}", 1 << 28)
        return found

    def _knows_both(self) -> bool:
        url = f"http://127.0.0.1:{self.router.ports['router_http']}/jmx?qry=Hadoop:service=Router,name=FederationState"
        return str(self.router.get(url)["beans"][0]["Namenodes"]).count("ACTIVE") == 2

    def _mount(self) -> None:
        classes = f"{self.router.configuration}:{library()}/*:{library('lib-router', ROUTER_ARTIFACTS)}/*"
        command = [java(), "-Xmx200m", "-XX:TieredStopAtLevel=1", "-cp", classes, ADMIN, "-add", "/other", "ns1", "/"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        through = HdfsFiles(self.place(self.router, "router_http"))
        HdfsFiles(self.place(self.members[1], "nn_http")).make_directory("hdfs://dlapp/here")
        self.router._until("the mount", lambda: through.exists("hdfs://dlapp/other/here"), 30)

    def configured(self) -> HdfsPlace:
        """Both as a client without a router has them in its configuration."""
        first, second = self.members
        properties = {
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
        return HadoopConfiguration(properties, "here").hdfs(Login(getpass.getuser()))


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    try:
        with ExitStack() as stack:
            yield Federation(stack)
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


@pytest.fixture
def through(federation: Federation) -> HdfsFiles:
    return HdfsFiles(federation.place(federation.router, "router_http"))


def test_only_a_namenode_says_that_its_numbers_count(federation: Federation, through: HdfsFiles) -> None:
    assert HdfsFiles(federation.place(federation.members[0], "nn_http")).web.has_numbers()
    assert not through.web.has_numbers()


def test_what_has_the_same_number_in_the_other_nameservice_stays(federation: Federation, through: HdfsFiles) -> None:
    first = HdfsFiles(federation.place(federation.members[0], "nn_http"))
    second = HdfsFiles(federation.place(federation.members[1], "nn_http"))
    base = f"hdfs://dlapp/t{os.urandom(4).hex()}"
    target = f"hdfs://dlapp/other/{base.rpartition('/')[2]}/run"
    # The commit's files get the numbers that come next in the second. In the first these are of other files.
    for number in range(80):
        first.write_atomic(f"{base}/foreign/{number}", b"not of this application")
    second.make_directory(base)
    before = federation.all_of(0)
    old = old_target(through, target)
    assert tree(through, target) == old
    parts = plant(through, target, ["0", "1"])
    status = through.web.status(through.place.path(f"{parts[0][1]}/model"))
    assert status is not None
    assert first.web.status(f"{INODES}/{status.inode_id}") is not None  # the numbers do overlap
    through.web.write(through.place.path(f"{parts[0][1]}/model"), b"model 0")
    assert commit.commit(target, APP, parts, overwrite=True, files=through) is None
    assert tree(through, target) == new_tree(["0", "1"])
    assert beside(through, target) == []
    assert federation.all_of(0) == before


def test_input_and_output_of_one_application_are_on_several_nameservices(
    federation: Federation, tmp_path: Path
) -> None:
    client, name = federation.configured(), f"t{os.urandom(4).hex()}"
    first, second = (HdfsFiles(federation.place(one, "nn_http")) for one in federation.members)
    first.write_atomic(f"hdfs://dlapp/{name}/a", b"of the first")
    second.write_atomic(f"hdfs://dlapp/mounted/{name}/b", b"of the second")
    named = (f"/{name}/a", f"hdfs://127.0.0.1:{federation.members[1].ports['nn']}/mounted/{name}/b")
    sources = [client.resolve(one) for one in named]
    target = client.resolve(f"viewfs://all/second/{name}/run")
    assert (sources[1], target) == (f"hdfs://ns1/mounted/{name}/b", f"hdfs://ns1/mounted/{name}/run")
    node = from_json(HdfsPlace, to_json(client.for_locations([*sources, target])))
    plan_fetch(sources, str(tmp_path), hdfs=node).fetch()
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"a": "of the first", "b": "of the second"}
    part = commit.part_location(target, APP, ContainerId(APP, 1, 2))
    open_output(part, node).store(str(tmp_path), part)
    # As a client does it for an ApplicationMaster that died.
    assert settled(HdfsStagingFiles(client), target, [("", part)]).committed
    assert tree(second, f"hdfs://dlapp/mounted/{name}/run") == {"a": "of the first", "b": "of the second"}
    assert first.names("hdfs://dlapp/" + name) == ["a"]
