"""NodeManagers that are killed and started again under an index, on a real YARN: it runs again, however often."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import Phase
from dlapp.values.report import Cause, ContainerView
from tests.cluster.yarn.on_yarn import until
from tests.services.hadoop import NODES, Hadoop
from tests.services.keeper import end_all_in
from tests.tiers import FULL

KILLS = 10 if FULL else 1
SCRIPT = """#!/bin/sh
echo begun >> {runs}
if [ $(wc -l < {runs}) -gt {kills} ]; then exit 0; fi
while echo step > checkpoint; do sleep 0.2; done
exit 1
"""


class Running(NamedTuple):
    """An application of one index, whose script ends well after `KILLS` runs that did not end by themselves."""

    client: Client
    application_id: ApplicationId
    runs: Path

    def begun(self) -> int:
        return len(self.runs.read_text().split()) if self.runs.exists() else 0

    def container(self, number: int) -> ContainerView | None:
        """Return the container of a run, once what is shown of the application has it."""
        found = self.client.status(self.application_id).containers
        is_it = [(one.attempt, one.phase) for one in found] == [(number, Phase.RUNNING)]
        return found[0] if is_it else None


@pytest.fixture(scope="module")
def running(hadoop: Hadoop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    place = tmp_path_factory.mktemp("lost")
    workspace, runs = place / "workspace", place / "runs"
    workspace.mkdir()
    (workspace / "run.sh").write_text(SCRIPT.format(runs=runs, kills=KILLS))
    path = place / "app.properties"
    path.write_text(
        "[application]\nappname=lost\nuser_dev_workspace_path=./workspace\nuser_shell_script=run.sh\n"
        f"username={getpass.getuser()}\n[resources]\nmemory=256m\n"
    )
    options = {
        "cluster": "yarn",
        "yarn.conf_dir": str(hadoop.configuration),
        "yarn.python": sys.executable,
        "local.state_dir": str(place / "state"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_USER_NAME", getpass.getuser())
        client = Client(load_config(options))
        yield Running(client, client.submit(str(path)).application_id, runs)
        client.engine.close()
    end_all_in(place)


@pytest.mark.parametrize("number", range(1, KILLS + 1))
def test_a_nodemanager_is_restarted_without_recovery_under_an_index(
    hadoop: Hadoop, running: Running, number: int
) -> None:
    until(lambda: running.begun() == number, 240)
    container = until(lambda: running.container(number))
    part = next(part for part, host in NODES.items() if f"//{host}:" in container.log_url)
    registered = hadoop.log(part).count("Registered with ResourceManager")
    hadoop.kill_part(part)
    hadoop.start_part(part)
    # The ResourceManager takes it for running for some seconds after its death.
    until(lambda: hadoop.log(part).count("Registered with ResourceManager") > registered)
    until(hadoop.nodes_ready)


@pytest.mark.slow
def test_an_index_whose_nodemanagers_were_restarted_comes_to_its_end(running: Running) -> None:
    end = running.client.wait(running.application_id, timeout_s=240)
    assert end.cause is Cause.SUCCEEDED, end.diagnostics
    assert running.begun() == KILLS + 1
    (container,) = end.containers
    assert {one.diagnosis.rule for one in container.earlier if one.diagnosis is not None} == {"node_lost"}
