"""Waits of a whole application on a real YARN, as dlapp-status shows them."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.values.messages import Phase
from dlapp.values.report import Cause, State
from tests.applications import properties
from tests.cluster.yarn.on_yarn import until
from tests.services.hadoop import Hadoop


@pytest.fixture
def client(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    tmp_path.chmod(0o755)
    options = {"cluster": "yarn", "yarn.conf_dir": str(hadoop.configuration), "yarn.python": sys.executable}
    with Client(load_config(options, environ={})) as one:
        yield one


@pytest.mark.slow
def test_without_a_resourcemanager_the_status_on_hdfs_names_the_wait(
    client: Client, hadoop: Hadoop, tmp_path: Path
) -> None:
    script = f"until [ -e '{tmp_path}/go' ]; do sleep 0.1; done"
    application_id = client.submit(str(properties(tmp_path, script, resources={"memory": 256})))
    until(lambda: [container.phase for container in client.status(application_id).containers] == [Phase.RUNNING])
    hadoop.kill_part("rm")
    try:
        until(lambda: "waits for the ResourceManager since " in client.status(application_id).phase)
        view = client.status(application_id)
        assert view.phase.startswith("running 1 of 1, waits for the ResourceManager since ")
        assert (view.state, [container.phase for container in view.containers]) == (State.RUNNING, [Phase.RUNNING])
        assert view.as_of_ms is not None
        assert view.diagnostics.startswith(f"the ResourceManager does not answer: {hadoop.rm_url}: ")
    finally:
        hadoop.start_part("rm")
        hadoop.wait_until_ready()
    until(lambda: client.status(application_id).phase == "running 1 of 1")
    (tmp_path / "go").touch()
    end = client.wait(application_id, timeout_s=240)
    assert end.cause is Cause.SUCCEEDED, end.diagnostics
    assert [container.attempt for container in end.containers] == [1]
