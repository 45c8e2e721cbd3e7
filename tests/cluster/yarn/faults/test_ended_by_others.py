"""Applications that YARN or an operator ends, on a real YARN: their output is kept, and a lifetime ends them softly."""

from __future__ import annotations

import getpass
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.hadoop.configuration import read_configuration
from dlapp.login import Login
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import Phase
from dlapp.values.report import Cause, State
from tests.cluster.yarn.on_yarn import until
from tests.services.hadoop import Hadoop
from tests.services.keeper import end_all_in

LIFETIME_S, GRACE_S = 80, 10
SCRIPT = """#!/bin/sh
trap 'kill $!; echo saved > output/x; exit 0' TERM
mkdir output
echo begun > output/x
[ $CONTAINER_INDEX = 0 ] && exit 0
sleep 600 &
wait $!
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("ended")
    workspace = directory / "workspace"
    workspace.mkdir()
    (workspace / "run.sh").write_text(SCRIPT)
    yield directory
    end_all_in(directory)


@pytest.fixture(scope="module")
def client(hadoop: Hadoop, place: Path) -> Iterator[Client]:
    options = {
        "cluster": "yarn",
        "yarn.conf_dir": str(hadoop.configuration),
        "yarn.python": sys.executable,
        "local.state_dir": str(place / "state"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_USER_NAME", getpass.getuser())
        client = Client(load_config(options))
        yield client
        client.engine.close()


@pytest.fixture(scope="module")
def files(hadoop: Hadoop) -> HdfsStagingFiles:
    return HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(getpass.getuser())))


def submitted(client: Client, place: Path, target: str) -> ApplicationId:
    path = place / "app.properties"
    path.write_text(
        "[application]\nappname=ended\nuser_dev_workspace_path=./workspace\nuser_shell_script=run.sh\n"
        f"username={getpass.getuser()}\nkill_grace={GRACE_S}\n[resources]\nmemory=256m\ncontainers=2\n"
        f"[to_hdfs]\noutput_path=output\nhdfs={target}\n"
    )
    return client.submit(str(path)).application_id


def put(hadoop: Hadoop, application_id: ApplicationId, what: str, body: object) -> None:
    """Change an application by the ResourceManager's REST interface, as an operator's tools do."""
    url = f"{hadoop.rm_url}/ws/v1/cluster/apps/{application_id}/{what}?user.name={getpass.getuser()}"
    request = urllib.request.Request(
        url, data=json.dumps(body).encode(), method="PUT", headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status in (200, 202)


@pytest.mark.slow
def test_output_is_kept_after_an_operators_kill_and_a_lifetime_ends_softly(
    hadoop: Hadoop, client: Client, place: Path, files: HdfsStagingFiles
) -> None:
    targets = [f"{files.home}/ended/{name}" for name in ("killed", "limited")]
    killed, limited = (submitted(client, place, target) for target in targets)
    # As its queue's maximum-application-lifetime would be, it is there before its ApplicationMaster is.
    due_time = time.strftime("%Y-%m-%dT%H:%M:%S.000+0000", time.gmtime(time.time() + LIFETIME_S))
    put(hadoop, limited, "timeout", {"timeout": {"type": "LIFETIME", "expiryTime": due_time}})

    def stored() -> bool:
        containers = {container.index: container.phase for container in client.status(killed).containers}
        return containers == {0: Phase.ENDED, 1: Phase.RUNNING}

    until(stored)
    put(hadoop, killed, "state", {"state": "KILLED"})
    until(lambda: any(output.partial for output in client.status(killed).outputs))
    end = client.status(killed)
    assert (end.state, end.cause) == (State.KILLED, Cause.KILLED)
    (partial,) = [output.partial for output in end.outputs]
    assert partial == f"{targets[0]}.{killed}.partial"
    # A task may have more time than YARN gives it, if its NodeManager is slow: then it has saved its output, too.
    texts = [files.read(f"{partial}/{part}/x", max_bytes=100) for part in files.names(partial)]
    assert texts in ([b"begun\n"], [b"begun\n", b"saved\n"])

    end = client.wait(limited, timeout_s=240)
    assert end.cause is Cause.TIMED_OUT
    assert end.diagnostics == "timed out: lifetime limit of the queue or application in YARN, output committed"
    assert end.diagnosis is not None
    assert end.diagnosis.diagnosis.rule == "lifetime_limit"
    texts = [files.read(f"{targets[1]}/{index}/x", max_bytes=100) for index in (0, 1)]
    assert texts == [b"begun\n", b"saved\n"]
