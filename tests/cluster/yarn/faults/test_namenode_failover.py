"""Test applications of a real cluster with two NameNodes, of which the active one is killed or hands over to the other
while the files of a submission go up, or while the output is committed.

The NameNodes share their edits by a directory. One that is killed is away for up to eight seconds, as long as a
ZooKeeper failover controller takes, or until the submission has given up, before the other one becomes active.
"""

from __future__ import annotations

import getpass
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlapp.errors import EXIT_UNREACHABLE
from dlapp.hadoop.configuration import read_configuration
from dlapp.login import Login
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from tests.applications import BIN, ended, launch, properties, run, status, wait_for
from tests.cluster.yarn.on_yarn import set_ha_state
from tests.seeds import each_seed
from tests.services.hadoop import QUICK_TO_NOTICE, Hadoop, NoHadoop
from tests.tiers import FULL

NAMENODES = ("nn", "nn2")
CONTAINERS, FILES = 2, 20
WORKSPACE_BYTES = 48 << 20
"""Random, so that its archive is as large: it goes up for about a second."""
WINDOWS_S = {"staging": 1.5, "commit": 3.0}
"""Time in which the failover begins, from the end of the packing, and of the programs: about as long as each takes."""
CASES = [(moment, "killed") for moment in WINDOWS_S]
if FULL:
    CASES += [*((moment, "handed over") for moment in WINDOWS_S), ("staging", "away")]
"""Each takes half a minute, or the time that a submission waits: these run at night."""
AWAY_S = 8.0
"""Longest time until the other NameNode becomes active; where the first is "away", until the submission has ended."""
# One on standby reads finished segments of the edits alone, and stays in safe mode while it misses blocks that are
# deleted in the next one.
SETTINGS = QUICK_TO_NOTICE | {"dfs.ha.log-roll.period": "5"}
SUBMISSION_S = 180.0
"""The limits of its waits (docs/waits.md): 60 s for its checks, 60 s for HDFS and 60 s for YARN."""
END_S = 240.0
STAGED = r"dlapp-[0-9a-f]+\.pyz|sha256-[0-9a-f]+\.tar\.gz"
"""Names of files that are whole."""
TEMPORARY = r"\.dlapp-[0-9a-f]{16}"
"""Name of a file that goes up. If no NameNode is left that could remove it, a later command does so after a day."""
PROGRAM = """\
echo . >>@/starts-$CONTAINER_INDEX
until [ -e @/done ]; do sleep 0.05; done
mkdir -p output
for number in $(seq %d); do echo "$CONTAINER_INDEX $number @" >output/$number; done
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Hadoop]:
    parts = (*NAMENODES, "dn", "rm", "nm1", "nm2")
    try:
        with Hadoop.start(parts=parts, settings={"hdfs-site.xml": SETTINGS}, wait=False) as cluster:
            wait_for("the first NameNode serves", lambda: state_of(cluster, "nn") == "standby")
            set_ha_state(cluster, "nn", active=True)
            cluster.wait_until_ready(parts=("dn", "nm2"))
            yield cluster
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


@pytest.fixture
def place(two: Hadoop, tmp_path: Path, travel_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for files by which programs and the test speak; commands and clients use the cluster."""
    monkeypatch.setenv("DLAPP_CLUSTER", "yarn")
    monkeypatch.setenv("DLAPP_YARN_CONF_DIR", str(two.configuration))
    monkeypatch.setenv("DLAPP_YARN_PYTHON", sys.executable)
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    tmp_path.chmod(0o755)
    cache = Path.home() / ".cache" / "dlapp"
    cache.mkdir(parents=True)
    (cache / "travel").symlink_to(travel_cache)
    here = tmp_path / "place"
    here.mkdir()
    return here


def state_of(hadoop: Hadoop, part: str) -> str:
    """Return the state of a NameNode that has left safe mode and knows the DataNode; empty: there is none."""
    try:
        url = f"http://127.0.0.1:{hadoop.ports[f'{part}_http']}/jmx?qry=Hadoop:service=NameNode,name="
        (names,) = hadoop.get(f"{url}FSNamesystemState", timeout_s=5.0)["beans"]
        (own,) = hadoop.get(f"{url}NameNodeStatus", timeout_s=5.0)["beans"]
    except (OSError, ValueError):
        return ""
    is_ready = names["FSState"] == "Operational" and names["NumLiveDataNodes"] == 1
    return str(own["State"]) if is_ready else ""


def wait_until_both_serve(hadoop: Hadoop) -> tuple[str, str]:
    """Wait until one NameNode is active and the other on standby, and return them in this order."""

    def look() -> tuple[str, str] | None:
        states = {state_of(hadoop, part): part for part in NAMENODES}
        return (states["active"], states["standby"]) if {*states} == {"active", "standby"} else None

    return wait_for("both NameNodes serve", look)


def fail_over(hadoop: Hadoop, kind: str, wait: Callable[[], object]) -> None:
    """Take the active NameNode, ``wait`` if it was killed, and make the other one active; a killed one starts again."""
    active, other = wait_until_both_serve(hadoop)
    if kind == "handed over":
        set_ha_state(hadoop, active, active=False)
    else:
        hadoop.kill_part(active)
        wait()
    set_ha_state(hadoop, other, active=True)
    if kind != "handed over":
        hadoop.start_part(active)


class Target(threading.Thread):
    """Watcher of the directory of an output: which ones were there, by their inode numbers."""

    def __init__(self, files: HdfsStagingFiles, location: str) -> None:
        super().__init__(daemon=True)
        self._files, self._location = files, location
        self.seen: list[int] = []
        self.is_over = threading.Event()
        self.look()

    def run(self) -> None:
        while not self.is_over.wait(0.05):
            self.look()

    def look(self) -> None:
        """Note what is there now."""
        found = self._files.status(self._location)
        if found is not None and self.seen[-1:] != [found.inode_id]:
            self.seen.append(found.inode_id)


def submitted(file: Path, hadoop: Hadoop, kind: str, chance: random.Random) -> str:
    """Submit an application while the NameNode fails over; if it is refused, a second try must do."""
    command, began = [str(BIN / "dlapp-launcher"), str(file)], time.monotonic()
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    workspaces = Path.home() / ".cache" / "dlapp" / "workspaces"
    wait_for("the workspace is packed", lambda: [*workspaces.glob("*.tar.gz")] or launcher.poll() is not None)
    time.sleep(chance.uniform(0.0, WINDOWS_S["staging"]))
    away_s = chance.uniform(0.0, AWAY_S)
    fail_over(hadoop, kind, lambda: launcher.wait(SUBMISSION_S) if kind == "away" else time.sleep(away_s))
    out, problem = launcher.communicate(timeout=SUBMISSION_S)
    print(f"submitted in {time.monotonic() - began:.1f} s: {launcher.returncode} {problem}")
    if launcher.returncode == 0:
        return id_in(out)
    errors = [line for line in problem.splitlines() if not line.startswith("dlapp-launcher waits for ")]
    assert launcher.returncode == EXIT_UNREACHABLE, problem
    assert [line.partition(": ")[0] for line in errors] == ["Error"], problem
    second = run("dlapp-launcher", file, timeout_s=SUBMISSION_S)
    assert second.code == 0, second.err
    return id_in(second.out)


def id_in(out: str) -> str:
    """Return the id that the launcher has printed."""
    return next(line.partition(" = ")[2] for line in out.splitlines() if line.startswith("DL App ID"))


@pytest.mark.hadoop
@pytest.mark.slow
@each_seed("failover of a NameNode", 3 if FULL else 1)
@pytest.mark.parametrize(("moment", "kind"), CASES)
def test_an_application_survives_a_namenode_failover(
    two: Hadoop, place: Path, moment: str, kind: str, seed: int
) -> None:
    """See that the submission succeeds, at once or at a second try, and that its 2 x 20 files are committed once.

    The workspace has 48 MiB. The failover begins at a random moment of 1.5 s or 3 s.
    """
    chance = random.Random(f"{moment} {kind} {seed}")
    above = f"/tmp/{place.parent.name}"
    file = properties(
        place,
        (PROGRAM % FILES).replace("@", str(place)),
        resources={"memory": 256, "containers": CONTAINERS},
        to_hdfs={"output_path": "output", "hdfs": f"{above}/result", "overwrite": "true"},
    )
    (place / "test_workspace" / "data").write_bytes(os.urandom(WORKSPACE_BYTES))
    files = HdfsStagingFiles(read_configuration(str(two.configuration)).hdfs(Login(getpass.getuser())), END_S)
    base = files.home.partition("/user/")[0] + above
    wait_until_both_serve(two)
    cache = f"{files.home}/.dlapp/cache"
    before = {*files.names(cache)}
    target = Target(files, f"{base}/result")
    target.start()
    try:
        application = submitted(file, two, kind, chance) if moment == "staging" else launch(file)
        wait_for("all run", lambda: all((place / f"starts-{n}").exists() for n in range(CONTAINERS)), END_S)
        (place / "done").touch()
        if moment == "commit":
            time.sleep(chance.uniform(0.0, WINDOWS_S["commit"]))
            away_s = chance.uniform(0.0, AWAY_S)
            fail_over(two, kind, lambda: time.sleep(away_s))
        seen = ended(application, END_S)
    finally:
        target.is_over.set()
        target.join()
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
    assert seen["attempt"] == 1
    assert [(place / f"starts-{number}").read_text() for number in range(CONTAINERS)] == [".\n"] * CONTAINERS
    target.look()
    assert len(target.seen) == 1, "the output was there more than once"
    for index in range(CONTAINERS):
        names = files.names(f"{base}/result/{index}")
        assert sorted(map(int, names)) == [*range(1, FILES + 1)]
        for name in names:
            assert files.read(f"{base}/result/{index}/{name}", max_bytes=1024) == f"{index} {name} {place}\n".encode()
    wait_for("nothing is left beside the output", lambda: files.names(base) == ["result"])
    wait_for("nothing is left of it", lambda: application not in files.names(f"{files.home}/.dlapp/staging"))
    known = re.compile(f"{STAGED}|{TEMPORARY}" if kind == "away" else STAGED)
    assert [item for item in {*files.names(cache)} - before if not known.fullmatch(item)] == []
    assert status(application)["final_status"] == "SUCCEEDED"
