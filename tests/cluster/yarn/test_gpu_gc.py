"""dlapp-gpu gc on other hosts, by applications on a real YARN, with the ledger on a real ZooKeeper."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlapp.cluster.yarn.client.rest import YarnRest
from dlapp.gpuid.devices import Device
from dlapp.gpuid.liveness.applications import ApplicationProbe
from dlapp.gpuid.liveness.probes import this_task
from dlapp.gpuid.liveness.result import GONE, UNKNOWN, Liveness
from dlapp.gpuid.rules import LeaseRequest
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from dlapp.login import Login
from tests.services.hadoop import NODES, Hadoop
from tests.services.zookeeper import ZooKeeper, ledger_settings

HERE = os.uname().nodename
SECRET = "dlapp:secret"


@pytest.fixture
def ledger_of_dead_task(zookeeper: ZooKeeper, tmp_path: Path) -> ZooKeeperLedger:
    """A ledger of this host in which a task that has died holds a GPU."""
    settings = ledger_settings(zookeeper.ensemble, f"/{tmp_path.name}", SECRET, lock_dir=str(tmp_path / "locks"))
    ledger = ZooKeeperLedger(settings, discover=lambda: (Device("GPU-x", 0, 0),))
    evidence = {"task": this_task() | {"start_time": 1}}
    ledger.acquire(LeaseRequest("application_1_0042", "container_1", "tony", 1, (), evidence)).close()
    return ledger


def gc(hadoop: Hadoop, ledger: ZooKeeperLedger, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    settings = {
        "DLAPP_CLUSTER": "yarn",
        "DLAPP_YARN_CONF_DIR": str(hadoop.configuration),
        "DLAPP_YARN_PYTHON": sys.executable,
        "DLAPP_GPUID_ZOOKEEPER_ENSEMBLE": ledger.settings.ensemble,
        "DLAPP_GPUID_ZOOKEEPER_ROOT": ledger.settings.root,
        "DLAPP_GPUID_ZOOKEEPER_CREDENTIALS": str(tmp_path / "secret"),
        "DLAPP_GPUID_LOCK_DIR": ledger.settings.lock_dir,
        "HADOOP_USER_NAME": getpass.getuser(),
    }
    return subprocess.run(
        [sys.executable, "-m", "dlapp.tools", "gpu", "gc", *words],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_ledger_of_other_hosts_is_cleared_up_by_applications_there(
    hadoop: Hadoop, ledger_of_dead_task: ZooKeeperLedger, tmp_path: Path, rest: YarnRest
) -> None:
    first, second = NODES.values()
    done = gc(hadoop, ledger_of_dead_task, tmp_path, first, "--timeout", "240")
    assert (done.returncode, done.stdout) == (0, f"{first}: gpu0 of container_1: freed\n"), done.stderr
    assert ledger_of_dead_task.record().leases == ()
    done = gc(hadoop, ledger_of_dead_task, tmp_path, second, "host99", HERE, "--json", "--timeout", "240")
    assert done.returncode == 5
    assert done.stderr == (
        f"host99: not reached: no node of the cluster that runs now has this name; there are {first}, {second}\n"
    )
    found = {host["host"]: host for host in json.loads(done.stdout)["hosts"]}
    assert found[second] == {"host": second, "error": "", "leases": []}
    assert found[HERE] == {"host": HERE, "error": "", "leases": []}
    assert "no node" in found["host99"]["error"]
    ledger_of_dead_task.close()
    # What the ResourceManager says of such an application, as a witness on leases.
    deadline = time.monotonic() + 120
    while not (ended := [str(report.application_id) for report in rest.reports() if report.finished_ms]):
        assert time.monotonic() < deadline  # an ApplicationMaster that has said its end may still run: FINISHED, at 0
        time.sleep(0.1)
    users = {name: ApplicationProbe((hadoop.rm_url,), Login(name)) for name in (getpass.getuser(), "stranger")}
    owner, until = users[getpass.getuser()], time.monotonic() + 120
    liveness = owner.check(ended[0], ended_s=-1.0, until=until)  # its clock has whole seconds
    assert liveness == Liveness(GONE), liveness
    assert owner.check(ended[0], ended_s=1e9, until=until).why == "its application ended less than 1e+09 s ago"
    assert "does not know its application" in owner.check("application_1_0042", ended_s=0.0, until=until).why
    # With ACLs it does not say to others when.
    assert users["stranger"].check(ended[0], ended_s=-1.0, until=until).state == UNKNOWN


def test_a_host_that_does_not_answer_in_time_is_named_and_its_application_is_killed(
    hadoop: Hadoop, ledger_of_dead_task: ZooKeeperLedger, tmp_path: Path
) -> None:
    first = next(iter(NODES.values()))
    done = gc(hadoop, ledger_of_dead_task, tmp_path, first, "--timeout", "1")
    assert done.returncode == 5
    assert done.stdout == ""
    assert done.stderr.startswith(f"{first}: not reached: no answer in 1 s: application_")
    application = done.stderr.partition("no answer in 1 s: ")[2].partition(":")[0]
    report = hadoop.get(f"{hadoop.rm_url}/ws/v1/cluster/apps/{application}")["app"]
    assert report["state"] in ("KILLED", "FINISHED", "FAILED")
    ledger_of_dead_task.close()
