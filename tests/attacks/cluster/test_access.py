"""Access of others to an application on YARN: those whom its owner names get through, and nobody else does."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.client.streams.ports import PortForward
from dlapp.cluster.yarn.client.rest import YarnRest
from dlapp.errors import Denied
from dlapp.hadoop.configuration import read_configuration
from dlapp.login import Login
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.values.access import STREAM_EXEC
from dlapp.values.ids import ApplicationId
from dlapp.values.report import Cause, FinalStatus
from tests.attacks.cluster.test_secrets import OWNER, client_of
from tests.cluster.yarn.on_yarn import until
from tests.services.hadoop import Hadoop, _write_xml
from tests.services.hadoop import read_configuration as read_properties
from tests.services.ports import held

VIEWER, MODIFIER, STRANGER = "viola", "moritz", "stranger"
SERVER = """
import signal, socket
signal.signal(signal.SIGTERM, lambda *_: exit(3))
server = socket.create_server(("127.0.0.1", PORT))
print("listening", flush=True)
while True:
    server.accept()[0].sendall(b"hello")
"""

ClientOf = Callable[[str], Client]


@pytest.fixture(params=["web port open", "web port closed"])
def client(
    hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[ClientOf]:
    """Make the client of a Hadoop user, who is the operating system's user of that name, too.

    One time clients and containers do not reach the web port of the NameNode, and use HDFS natively.
    """
    made: list[Client] = []
    keys: dict[str, str] = {}
    if request.param == "web port closed":
        shutil.copytree(hadoop.configuration, tmp_path / "conf")
        site = tmp_path / "conf" / "yarn-site.xml"  # read last
        _write_xml(site, read_properties(site) | {"dfs.namenode.http-address": "127.0.0.1:1"})
        keys = {"yarn__conf_dir": str(tmp_path / "conf"), "storage__hdfs": "native"}

    def client(user: str) -> Client:
        made.append(client_of(hadoop, tmp_path / user, monkeypatch, user, **keys))
        monkeypatch.setattr("dlapp.client.operations.connections.caller", lambda: user)
        return made[-1]

    yield client
    for item in made:
        item.engine.close()


@pytest.fixture
def submitted(hadoop: Hadoop, tmp_path: Path, client: ClientOf) -> Iterator[tuple[ApplicationId, int]]:
    """An application that serves a port."""
    port, sockets = held()
    for socket in sockets:
        socket.close()
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "server.py").write_text(SERVER.replace("PORT", str(port)))
    (tmp_path / "app.properties").write_text(
        f"[application]\nappname=access\nuser_dev_workspace_path=workspace\ncommand={sys.executable} server.py\n"
        f"username={OWNER}\nview_acl={VIEWER}\nmodify_acl={MODIFIER}\n[resources]\ncontainers=1\nmemory=256m\n"
    )
    application_id = client(OWNER).submit(str(tmp_path / "app.properties")).application_id
    try:
        yield application_id, port
    finally:
        with YarnRest([hadoop.rm_url], Login(OWNER)) as rest:
            rest.kill(application_id, timeout_s=120)


def bytes_of(client: Client, application_id: ApplicationId, port: int) -> tuple[bytes, str]:
    """Return what a port says, and the way of the connection."""
    with PortForward(client, application_id, client.index_of(application_id, "worker", 0), port) as forward:
        forward.wait_open(120)
        connection = forward._connect()
        with connection:
            return connection.recv(100), forward.route


@pytest.mark.proves("ports-access")
@pytest.mark.slow
def test_only_users_in_the_acls_view_reach_ports_or_kill(
    submitted: tuple[ApplicationId, int], hadoop: Hadoop, client: ClientOf
) -> None:
    application_id, port = submitted
    files = HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(OWNER)))
    staging = f"{files.home}/.dlapp/staging/{application_id}"
    viewer = client(VIEWER)
    until(lambda: [container.phase.value for container in viewer.status(application_id).containers] == ["running"])
    assert viewer.status(application_id).view_acl == VIEWER
    # The node shows logs to those whom the launch of the containers names.
    until(lambda: viewer.log_tail(application_id, 0, stream="stdout") == b"listening\n")
    assert bytes_of(viewer, application_id, port) == (b"hello", "through the ApplicationMaster")
    with pytest.raises(Denied, match="view_acl permits dlapp-port only"):
        viewer.stream_opener(application_id)(0, STREAM_EXEC, {"command": ["id"]})
    for refused in (viewer.softkill, viewer.kill, viewer.engine.submission):
        with pytest.raises(Denied, match=f"belongs to {OWNER}"):
            refused(application_id)

    stranger = client(STRANGER)
    # With yarn.acl.enable YARN tells strangers neither the address nor the containers.
    assert stranger.status(application_id).containers == ()
    for asked in (stranger.softkill, stranger.kill, stranger.stream_opener):
        with pytest.raises(Denied, match=f"belongs to {OWNER}"):
            asked(application_id)
    theirs = HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(STRANGER)))
    for name in ("viewers.token", "modifiers.token", "view.json"):
        with pytest.raises(Denied):
            theirs.read(f"{staging}/{name}", max_bytes=1 << 20)

    modifier = client(MODIFIER)
    with pytest.raises(Denied, match=f"belongs to {OWNER}"):
        modifier.stream_opener(application_id)
    assert modifier.status(application_id).modify_acl == MODIFIER
    assert "is being stopped" in modifier.softkill(application_id)
    until(lambda: files.status(staging) is None)
    view = client(OWNER).wait(application_id, timeout_s=120)
    assert (view.final_status, view.cause, view.soft_kill_by) == (FinalStatus.KILLED, Cause.SOFT_KILLED, MODIFIER)
    files.close()
    theirs.close()
