"""Disks that are full under a real Hadoop: what was computed is kept, and the status says what it waits for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.applications import ended, launch, properties, run, status, wait_for
from tests.engines import Engine
from tests.services.disks import fill, small_disk
from tests.services.hadoop import NODES, Hadoop, NoHadoop
from tests.services.processes import am_at_points

END_S = 120.0
YARN = pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
pytestmark = [pytest.mark.slow, pytest.mark.root("to mount small disks")]


class Disks(NamedTuple):
    """The disk of the only DataNode, and that of the directories of all NodeManagers."""

    of_data: Path
    of_nodes: Path


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    data, nodes = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("nodes")
    with small_disk(data, size_mib=96) as of_data, small_disk(nodes, size_mib=96) as of_nodes:
        yield Disks(of_data, of_nodes)


@pytest.fixture(scope="module")
def hadoop(disks: Disks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    """A cluster on them, in place of the one that other tests share."""
    directory = tmp_path_factory.mktemp("hadoop")
    for host in NODES.values():
        (disks.of_nodes / host).mkdir()
        (directory / f"local-{host}").symlink_to(disks.of_nodes / host)
    of_hdfs = {
        "dfs.datanode.data.dir": f"file://{disks.of_data}/data",
        # A DataNode with less space than one block and this is given none.
        "dfs.blocksize": str(1 << 20),
        "dfs.datanode.round-robin-volume-choosing-policy.additional-available-space": "0",
        "dfs.heartbeat.interval": "1",
    }
    # A NodeManager that looks while its disk is full gives the node up, until it looks again two minutes later.
    of_yarn = {"yarn.nodemanager.disk-health-checker.interval-ms": "86400000"}
    try:
        cluster = Hadoop.start(directory, settings={"hdfs-site.xml": of_hdfs, "yarn-site.xml": of_yarn})
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")
    with cluster:
        yield cluster


@YARN
def test_output_waits_for_space_on_the_datanodes_and_is_computed_once(
    engine: Engine, disks: Disks, tmp_path: Path
) -> None:
    engine.put("somewhere else", "")
    up, go = tmp_path / "up", tmp_path / "go"
    script = (
        f"echo start >>{tmp_path}/starts; mkdir output; head -c 3000000 /dev/zero | tr '\\0' 0 >output/model\n"
        f"touch {up}; until [ -e {go} ]; do sleep 0.05; done"
    )
    output = {"output_path": "output", "hdfs": f"{engine.root}/result"}
    application = launch(properties(tmp_path, script, resources={"retries": 2}, to_hdfs=output))
    wait_for("its program", up.exists, END_S)
    ballast = fill(disks.of_data)
    go.touch()
    wait_for("it waits", lambda: status(application)["phase"].startswith("storing: waits for "), END_S)
    # The NameNode excludes the DataNode that refused the block, or heard from it already that it is full.
    (line,) = (line for line in run("dlapp-status", application).out.splitlines() if line.startswith("phase : "))
    message = (
        "could only be written to 0 of the 1 minReplication nodes",
        "space on the DataNodes",
        "lives and has space",
    )
    assert any(item in line for item in message), line
    assert f"{engine.root}/result." in line
    assert "/.reserved/" not in line
    ballast.unlink()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0
    assert (tmp_path / "starts").read_text() == "start\n"
    assert engine.beside("result") == []
    assert engine.tree("result") == {"model": "0" * 3_000_000}


@YARN
@pytest.mark.parametrize("point", ["before claim", "after claim", "before archive"])
def test_a_commit_waits_for_datanode_space_and_leaves_no_partial_output(
    engine: Engine, disks: Disks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Fill the only DataNode when two containers have stored their output, before or after the commit is claimed, and
    before the history of the application is written.

    See that the status says what is waited for and where, that there is no output before the commit goes on, and that
    it is whole then, although nothing ran twice.
    """
    points = tmp_path / "points"
    monkeypatch.setenv("DLAPP_YARN_PYTHON", str(am_at_points.install(points, point, do=am_at_points.HOLD)))
    engine.put("somewhere else", "")
    script = f"echo start >>{tmp_path}/starts; mkdir output; echo $CONTAINER_INDEX >output/index"
    output = {"output_path": "output", "hdfs": f"{engine.root}/result"}
    resources = {"containers": 2, "memory": 256}
    application = launch(properties(tmp_path, script, resources=resources, to_hdfs=output))
    wait_for("its commit", (points / "hold-1").exists, END_S)
    whole = {"0/index": "0\n", "1/index": "1\n"}
    # The claim is in the application's directory, the marker of the commit beside the output.
    location = f"/.dlapp/staging/{application}/" if point == "before claim" else f"{engine.root}/result.{application}."
    waits = re.compile(f"committing: waits for space on the DataNodes for hdfs://[^ ]*{re.escape(location)}")
    ballast = fill(disks.of_data)
    try:
        (points / "hold-1").unlink()
        if point == "before archive":
            assert engine.tree("result") == whole
        else:
            wait_for("it waits", lambda: waits.match(status(application)["phase"]), END_S)
            assert "result" not in engine.names("")
    finally:
        ballast.unlink()
    seen = ended(application, END_S)
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
    assert engine.tree("result") == whole
    assert engine.beside("result") == []
    assert (tmp_path / "starts").read_text() == "start\n" * 2


@YARN
def test_output_written_before_a_program_filled_the_disk_is_kept(engine: Engine, disks: Disks, tmp_path: Path) -> None:
    engine.put("somewhere else", "")
    script = "mkdir output; echo 1 >output/checkpoint; exec head -c 500000000 /dev/zero >scratch"
    output = {"output_path": "output", "hdfs": f"{engine.root}/kept"}
    done = run("dlapp-launcher", "--wait", properties(tmp_path, script, to_hdfs=output), timeout_s=END_S)
    assert done.code == 1, done.out
    seen = status("last")
    assert seen["diagnostics"].startswith("container 0 (worker 0) failed: exit code 1")
    assert "No space left on device" in done.out
    (kept_output,) = engine.beside("kept")
    assert engine.tree(kept_output) == {"checkpoint": "1\n"}
    again = run("dlapp-launcher", "--wait", properties(tmp_path, "true", name="again"), timeout_s=END_S)
    assert again.code == 0, again.out
