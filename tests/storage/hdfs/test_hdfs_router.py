"""Two nameservices: a client that knows both, and a Router before them.

A commit behind the Router, where inode numbers overlap, leaves the other one alone.
"""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dlapp.cluster.yarn.client.preflight import check_home
from dlapp.errors import UsageError
from dlapp.locations import AUTO, NATIVE, HdfsPlace
from dlapp.storage import commit
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.native import NativeHdfs
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.storage.hdfs.webhdfs import INODES
from dlapp.storage.open import open_output, plan_fetch
from dlapp.values.ids import ContainerId
from dlapp.values.serialization import from_json, to_json
from tests.applications import properties, run
from tests.seeds import each_seed
from tests.services.hadoop import NoHadoop, _write_xml
from tests.storage.commit.test_hdfs import APP, new_tree, old_target, plant, settled, sibling_names, tree
from tests.storage.federation import (
    KILLS,
    Federation,
    foreign_of,
    overlapping,
    place_of,
    prepare,
    store_and_commit_while_datanodes_die,
)
from tests.tiers import FULL

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    try:
        with ExitStack() as stack:
            yield Federation(stack)
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


@pytest.fixture
def through(federation: Federation) -> HdfsFiles:
    return federation.through()


def test_inode_numbers_are_used_only_at_a_namenode(federation: Federation, through: HdfsFiles) -> None:
    assert federation.member(0).web.has_inode_paths()
    assert not through.web.has_inode_paths()
    # Their RPC ports say it as well, where no web port is open.
    for server, port, reason in (
        (federation.members[0], "nn", ""),
        (federation.router, "router", "it is a Router, and no NameNode"),
    ):
        for protocol in (NATIVE, AUTO):
            location = f"hdfs://127.0.0.1:{server.ports[port]}"
            place = HdfsPlace(location, ("http://127.0.0.1:1",), through.place.login, protocol=protocol)
            with contextlib.closing(NativeHdfs(place)) as web:
                assert web.webhdfs_reason() == reason


def test_files_with_the_same_inode_number_in_another_nameservice_stay(
    federation: Federation, through: HdfsFiles
) -> None:
    first = federation.member(0)
    second = federation.member(1)
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
    assert sibling_names(through, target) == []
    assert federation.all_of(0) == before


@each_seed("router", 5 if FULL else 1)
def test_a_datanode_killed_during_a_store_loses_no_file(federation: Federation, tmp_path: Path, seed: int) -> None:
    """Kill DataNodes at moments of one seed, and at night of five."""
    own = prepare(federation, 200)
    before = foreign_of(federation, own)
    assert store_and_commit_while_datanodes_die(federation, own, tmp_path, seed) == KILLS
    above = place_of(own, seed)
    assert len(overlapping(federation, f"{above}/run")) == 3
    assert foreign_of(federation, own) == before


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_target_on_several_nameservices_is_refused_before_any_change(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    place = federation.through().place
    site = {"fs.defaultFS": place.location, "dfs.nameservices": "dlapp", "dfs.ha.namenodes.dlapp": "router"}
    site["dfs.namenode.http-address.dlapp.router"] = place.web[0].removeprefix("http://")
    (tmp_path / "conf").mkdir()
    _write_xml(tmp_path / "conf/hdfs-site.xml", site)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "conf"))
    output = {"output_path": "out", "hdfs": "hdfs:///spread/a/run", "overwrite": str(overwrite).lower()}
    done = run("dlapp-launcher", properties(tmp_path, "mkdir out", to_hdfs=output))
    words = (
        "hdfs://dlapp/spread/a/run is below the mount point /spread of the HDFS Router, which has 2 destinations; "
        "dlapp writes only where there is one"
    )
    assert done.code == 2
    errors = [line for line in done.err.splitlines() if "hdfs" in line and " INFO " not in line]
    assert [line.endswith(words) for line in errors] == [True], done.err
    for member in range(2):
        assert federation.member(member).names("hdfs://dlapp/spread") == []


def test_a_home_directory_that_is_on_several_nameservices_is_refused(through: HdfsFiles) -> None:
    staged = HdfsStagingFiles(through.place._replace(homes="/spread"))
    with pytest.raises(UsageError, match="is below the mount point /spread of the HDFS Router"):
        check_home(staged, getpass.getuser())
    assert staged.names("hdfs://dlapp/spread") == []
    staged.close()


def test_input_and_output_of_one_application_are_on_several_nameservices(
    federation: Federation, tmp_path: Path
) -> None:
    client, name = federation.configured(), f"t{os.urandom(4).hex()}"
    first, second = federation.member(0), federation.member(1)
    first.write_atomic(f"hdfs://dlapp/{name}/a", b"of the first")
    second.write_atomic(f"hdfs://dlapp/mounted/{name}/b", b"of the second")
    named = (f"/{name}/a", f"hdfs://127.0.0.1:{federation.members[1].ports['nn']}/mounted/{name}/b")
    sources = [client.resolve(item) for item in named]
    target = client.resolve(f"viewfs://all/second/{name}/run")
    assert (sources[1], target) == (f"hdfs://ns1/mounted/{name}/b", f"hdfs://ns1/mounted/{name}/run")
    node = from_json(HdfsPlace, to_json(client.for_locations([*sources, target])))
    plan_fetch(sources, str(tmp_path), hdfs=node).fetch()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "of the first", "b": "of the second"}
    part = commit.part_location(target, APP, ContainerId(APP, 1, 2))
    open_output(part, node).store(str(tmp_path), part)
    # As a client does it for an ApplicationMaster that died.
    assert settled(HdfsStagingFiles(client), target, [("", part)]).committed
    assert tree(second, f"hdfs://dlapp/mounted/{name}/run") == {"a": "of the first", "b": "of the second"}
    assert first.names("hdfs://dlapp/" + name) == ["a"]
