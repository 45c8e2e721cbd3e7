"""Tasks on a cluster whose ApplicationMaster is dead: each ends when its application is over, whatever it is at.

The NameNode and the ResourceManager are one server of a few lines, the pauses between questions are a tenth of a
second, and the task is a real process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.storage.hdfs.webhdfs import _NAMENODE
from dlapp.values.messages import Fault, Phase
from dlapp.values.spec import OutputSpec
from tests.runtime.driver import USER
from tests.services.http.http_server import Answer, Request, as_json, http_server
from tests.task.fake_am import APPLICATION, FakeAm, workspace_archive
from tests.task.test_task import payload_processes

pytestmark = pytest.mark.root  # a task on a cluster runs no program as root

STAGING = f"/user/tony/.dlapp/staging/{APPLICATION}"
QUICK = (
    "from dlapp.task.link import am_address, am_link, application_end as end\n"
    "am_link._LOOK_FOR_END_EVERY_S = 0.1\n"
    "am_address.OFTEN_PAUSES_S = am_address.SELDOM_PAUSES_S = 0.1, 0.1\n"
    "end.APART_S, end.STAGING_EVERY_S = 0.5, (0.1, 0.1)\n"
    "end.STATE_EVERY_S = end.FIRST_STATE_S = 0.1, 0.1\n"
)
STATUS = {
    "pathSuffix": "", "type": "DIRECTORY", "length": 0, "fileId": 7, "permission": "700", "owner": "tony",
    "modificationTime": 7,
}  # fmt: skip
BEANS = {"beans": [{"modelerType": _NAMENODE, "State": "active", "FSState": "Operational"}]}
NOT_FOUND = {"RemoteException": {"exception": "FileNotFoundException", "message": "not there"}}
SAFE_MODE = {"RemoteException": {"exception": "SafeModeException", "message": "safe mode"}}


class Servers:
    """A NameNode, which is its own DataNode, and an active ResourceManager."""

    def __init__(self) -> None:
        self.state = "RUNNING"
        self.has_staging = self.takes_changes = True
        self.datanode = ""
        self.refuses: dict[str, Any] | None = None
        self.asked_state = self.asked_staging = 0

    def answer(self, method: str, path: str, query: str) -> tuple[int, Any]:
        if path == "/jmx":
            return 200, BEANS
        if path == "/ws/v1/cluster/info":
            return 200, {"clusterInfo": {"haState": "ACTIVE"}}
        if path.startswith("/ws/v1/cluster/apps/"):
            self.asked_state += 1
            return 200, {"app": {"id": str(APPLICATION), "state": self.state}}
        if method != "GET" and not self.takes_changes:
            return 403, SAFE_MODE
        if "op=CREATE" in query and self.refuses is not None:
            return 403, self.refuses
        if "op=CREATE" in query:
            return (201, "") if "datanode=true" in query else (307, f"{path}?{query}&datanode=true")
        if method != "GET":
            return 200, {"boolean": True}
        path = path.removeprefix("/webhdfs/v1")
        self.asked_staging += path == STAGING
        if path.rpartition("/")[2].startswith((".", "commit.")):
            return 404, NOT_FOUND
        is_there = not path.startswith(STAGING) or (path == STAGING and self.has_staging)
        return (200, {"FileStatus": STATUS}) if is_there else (404, NOT_FOUND)


@pytest.fixture
def servers() -> Iterator[tuple[Servers, str]]:
    one = Servers()

    def answer(request: Request) -> Answer:
        code, response = one.answer(request.method, request.path, request.target.partition("?")[2])
        if code == 307:
            data_url = f"http://{one.datanode or request.headers['Host']}{response}"
            return Answer(code, headers=(("Location", data_url),))
        return as_json(response, code)

    with http_server(answer) as url:
        yield one, url


class Orphan:
    """A task whose ApplicationMaster dies."""

    def __init__(self, am: FakeAm, url: str, begins_with: str = "") -> None:
        self.am = am
        am.start(
            as_uid=USER,
            begins_with=QUICK + begins_with,
            am_file=f"hdfs://nn{STAGING}/addresses",
            hdfs=HdfsPlace("hdfs://nn", (url,), Login("tony")),
            resource_managers=(url,),
        )

    def ends(self) -> str:
        """Wait until all of it has ended. Return its log."""
        assert self.am.task is not None
        assert self.am.task.wait(timeout=240) == 1
        assert payload_processes(self.am) == []
        return self.am.log()

    def check_alive(self, servers: Servers) -> None:
        """Check that it is there after it has asked both servers some times."""
        state, staging = servers.asked_state, servers.asked_staging
        self.am.wait_until(lambda: servers.asked_state > state + 3 and servers.asked_staging > staging + 3)
        assert self.am.task is not None
        assert self.am.task.poll() is None


def make_am(place: Path, script: str, **assignment: Any) -> FakeAm:
    place.chmod(0o777)
    return FakeAm(place / "containers", **workspace_archive(place, {"run.sh": script}), **assignment)


@pytest.mark.parametrize("proof", ["staging", "state"])
def test_a_payload_has_its_grace_when_its_application_is_over(
    place: Path, servers: tuple[Servers, str], proof: str
) -> None:
    stub, url = servers
    saves = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    with make_am(place, saves) as am:
        orphan = Orphan(am, url)
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        am.die()
        orphan.check_alive(stub)
        if proof == "staging":
            stub.state, stub.has_staging = "", False
        else:
            stub.state = "KILLED"
        log = orphan.ends()
        assert am.printed() == b"ready\nsaved\n"
        assert ("its staging directory is gone" if proof == "staging" else "has it as KILLED") in log


def test_a_task_waiting_for_its_start_ends_with_its_application(place: Path, servers: tuple[Servers, str]) -> None:
    stub, url = servers
    with make_am(place, "echo ran") as am:
        am.order(go=False)
        orphan = Orphan(am, url)
        am.wait_for(Phase.WAITING)
        am.die()
        orphan.check_alive(stub)
        stub.state = "FAILED"
        orphan.ends()
        assert not (am.home / "stdout").exists()


def test_a_result_is_not_kept_waiting_after_the_applications_end(place: Path, servers: tuple[Servers, str]) -> None:
    stub, url = servers
    with make_am(place, "echo ready; while [ ! -e $TMPDIR/finish ]; do sleep 0.02; done") as am:
        orphan = Orphan(am, url)
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        am.die()
        (am.home / "tmp" / "finish").touch()
        am.wait_until(lambda: "ended: well" in am.log())
        orphan.check_alive(stub)
        stub.state = "FINISHED"
        orphan.ends()


def test_output_is_not_stored_for_an_application_that_is_over(place: Path, servers: tuple[Servers, str]) -> None:
    stub, url = servers
    target = f"hdfs://nn/user/tony/out.{APPLICATION}.tmp"
    outputs = (OutputSpec(output_path="output", target="hdfs://nn/user/tony/out"),)
    script = "mkdir output; echo 1 >output/x; until [ -e $TMPDIR/finish ]; do sleep 0.02; done"
    with make_am(place, script, outputs=outputs, parts=(f"{target}/container",)) as am:
        orphan = Orphan(am, url)
        am.wait_for(Phase.RUNNING)
        stub.takes_changes = False
        (am.home / "tmp" / "finish").touch()
        am.wait_until(lambda: "waits for its file system since" in am.log())
        am.die()
        orphan.check_alive(stub)
        stub.state = "FAILED"
        orphan.ends()


def test_a_node_without_datanodes_is_found_before_the_payload_starts(place: Path, servers: tuple[Servers, str]) -> None:
    stub, url = servers
    stub.datanode = "127.0.0.1:1"
    outputs = (OutputSpec(output_path="output", target="hdfs://nn/user/tony/out"),)
    with make_am(place, "echo ran", outputs=outputs, parts=("hdfs://nn/user/tony/out.tmp/container",)) as am:
        Orphan(
            am,
            url,
            "from dlapp.storage.hdfs.webhdfs import WebHdfs as W\nW.__init__.__kwdefaults__['patience_s'] = 0.5",
        )
        result = am.result()
        assert (result.fault, result.service) == (Fault.NODE, "the DataNodes of hdfs://nn")
        assert result.message.startswith("the output could not be stored from this node: ")
        assert "127.0.0.1:1 connection refused" in result.message
        assert Phase.UNPACKING not in am.phases


def test_a_refusal_of_the_namenode_is_not_a_node_fault(place: Path, servers: tuple[Servers, str]) -> None:
    stub, url = servers
    stub.refuses = {"RemoteException": {"exception": "IllegalStateException", "message": "no file goes there"}}
    outputs = (OutputSpec(output_path="output", target="hdfs://nn/user/tony/out"),)
    with make_am(place, "echo ran", outputs=outputs, parts=("hdfs://nn/user/tony/out.tmp/container",)) as am:
        Orphan(am, url)
        result = am.result()
        assert result.fault is Fault.DATA
        assert result.message.startswith("output output could not be stored: ")
        assert "no file goes there" in result.message
