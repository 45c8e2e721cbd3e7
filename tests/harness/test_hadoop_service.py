"""The Hadoop that the tests run on: what it offers, and that nothing of it stays."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import open_files, properties, run
from tests.services import keeper
from tests.services.hadoop import NODE_GCORES, USUAL_PORTS, Hadoop, read_configuration
from tests.services.install import nvidia_devices
from tests.services.polling import wait_until
from tests.tiers import FULL

ROOT = Path(__file__).resolve().parents[2]
Kept = tuple[Path, "subprocess.Popen[bytes]"]
OWNER = """
import subprocess, sys, os
from pathlib import Path
end, lifeline = os.pipe()
command = [sys.executable, "-m", "tests.services.keeper", sys.argv[1], str(end)]
subprocess.Popen(command, pass_fds=[end], start_new_session=True)
print("started", flush=True)
sys.stdin.read()
"""


def test_both_nodes_offer_gcores_and_have_names_of_their_own(hadoop: Hadoop) -> None:
    nodes = hadoop.get(f"{hadoop.rm_url}/ws/v1/cluster/nodes")["nodes"]["node"]
    assert sorted(node["id"] for node in nodes) == hadoop.nodes
    for node in nodes:
        kinds = {
            kind["name"]: kind["value"] for kind in node["totalResource"]["resourceInformations"]["resourceInformation"]
        }
        assert kinds["gcores"] == NODE_GCORES


def test_there_are_two_queues_to_use_and_three_to_be_refused_by(hadoop: Hadoop) -> None:
    scheduler = hadoop.get(f"{hadoop.rm_url}/ws/v1/cluster/scheduler")["scheduler"]["schedulerInfo"]
    names = [queue["queueName"] for queue in scheduler["queues"]["queue"]]
    assert sorted(names) == ["closed", "default", "full", "locked", "research"]


def test_files_of_a_server_are_removed_with_the_cluster(hadoop: Hadoop) -> None:
    used = set()
    for part, server in hadoop.status().items():
        names = [*Path(f"/proc/{server['pid']}/maps").read_text().split(), *open_files(server["pid"])]
        used |= {Path(name) for name in names if name.startswith(f"{tempfile.gettempdir()}/")}
        used |= set((hadoop.directory / part).glob("jetty-*"))
    assert any("leveldb" in path.name for path in used)
    assert any("jetty" in path.name for path in used)
    assert [path for path in used if not path.is_relative_to(hadoop.directory)] == []


def test_a_cluster_on_the_usual_ports_is_configured_on_them(hadoop: Hadoop, tmp_path: Path) -> None:
    with Hadoop.start(tmp_path, ports=USUAL_PORTS, parts=(), wait=False) as usual:
        properties = read_configuration(usual.configuration / "yarn-site.xml")
        assert properties["yarn.resourcemanager.webapp.address"] == "127.0.0.1:8088"
        assert usual.hdfs_url == "http://127.0.0.1:9870"


if FULL:

    @pytest.mark.hadoop
    @pytest.mark.skipif(nvidia_devices() > 0, reason="root may not hide a GPU that is there")
    def test_a_kept_cluster_has_a_ledger_and_the_machines_devices(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Names of sockets are short.
        directory = Path(tempfile.mkdtemp(prefix="dlapp-up-"))
        environment = {**os.environ, "TMPDIR": str(directory)}

        def do(words: str) -> str:
            program = f"from tests.services import hadoop; hadoop.{words}"
            done = subprocess.run(
                [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        try:
            printed = do("up()")
            config = printed.partition("export DLAPP_CONFIG=")[2].partition("\n")[0]
            monkeypatch.setenv("DLAPP_CONFIG", config)
            monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
            monkeypatch.setenv("DLAPP_GPUID_LOCK_DIR", str(directory / "locks"))
            done = run("dlapp-launcher", "--wait", properties(tmp_path, "true", resources={"gcores": "auto"}))
            assert done.code == 0, done.err
            done = run("dlapp-launcher", "--wait", properties(tmp_path, "true", resources={"gcores": 1}))
            assert done.code == 2, done.err
            assert "asked for 1 gcores in one container, the maximum of the cluster is 0" in done.err
            (ledger,) = [line for line in run("dlapp-doctor").out.splitlines() if "gpu.ledger" in line]
            assert ledger.startswith("pass ")
        finally:
            do("down()")
        assert list(directory.glob("dlapp-hadoop-*")) == []
        assert keeper._working_in(directory) == []
        shutil.rmtree(directory)


@pytest.fixture
def kept_cluster(tmp_path: Path) -> Iterator[Kept]:
    """A directory whose keeper has one part: a shell that leaves a grandchild in a session of its own."""
    part = {"command": ["/bin/sh", "-c", "setsid sleep 1000 & sleep 1000"], "environment": {"PATH": os.defpath}}
    (tmp_path / "parts.json").write_text(json.dumps({"one": part}))
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    owner.stdout.readline()
    wait_until(lambda: (tmp_path / "control").exists())
    yield tmp_path, owner
    owner.communicate()


def test_a_part_is_killed_and_started_again(kept_cluster: Kept) -> None:
    directory, _ = kept_cluster
    first = keeper.ask(directory, do="start", part="one")["one"]["pid"]
    assert keeper.ask(directory, do="kill", part="one")["one"]["exit"] == -signal.SIGKILL
    assert keeper.ask(directory, do="start", part="one")["one"]["pid"] != first
    with pytest.raises(RuntimeError, match="'fly' is no request"):
        keeper.ask(directory, do="fly")


@pytest.mark.parametrize("death", ["owner", "inner", "outer", "down"])
def test_no_server_and_no_file_outlives_any_end_of_the_test_run(kept_cluster: Kept, death: str) -> None:
    directory, owner = kept_cluster
    part = keeper.ask(directory, do="start", part="one")["one"]["pid"]
    wait_until(lambda: len(keeper._working_in(directory)) == 3)
    inner = _parent(part)
    if death == "down":
        keeper.ask(directory, do="down")
    else:
        os.kill({"owner": owner.pid, "inner": inner, "outer": _parent(inner)}[death], signal.SIGKILL)
    wait_until(lambda: not keeper._working_in(directory))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
