"""dlapp-doctor on a real cluster, and its words on clusters that are set up wrongly."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.yarn.client.preflight import check_queue
from dlapp.cluster.yarn.client.rest import NewApplication, NodeInfo, QueueInfo, YarnRest
from dlapp.config import Config, load_config
from dlapp.doctor import hdfs as doctor_hdfs
from dlapp.doctor.findings import FAIL, PASS, WARN, CheckContext, Finding
from dlapp.doctor.run import diagnosis
from dlapp.doctor.yarn import _history, _resource_manager
from dlapp.errors import SpecError, Unreachable
from dlapp.hadoop.configuration import HadoopConfiguration
from dlapp.locations import HdfsPlace, HdfsService, MountTable
from dlapp.login import Login
from dlapp.tools.machine.doctor import node_table
from dlapp.values.ids import ApplicationId
from tests.services.hadoop import NODES, VERSION, Hadoop
from tests.services.http.http_server import Answer, http_server


@pytest.fixture
def configured(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLAPP_YARN_CONF_DIR", str(hadoop.configuration))
    monkeypatch.setenv("DLAPP_YARN_PYTHON", sys.executable)


@pytest.mark.slow
@pytest.mark.usefixtures("configured")
def test_a_cluster_that_is_set_up_as_documented_has_no_failure(hadoop: Hadoop, rest: YarnRest) -> None:
    found = {finding.subject: finding for finding in diagnosis(cluster="yarn", node="any")}
    assert [finding for finding in found.values() if finding.verdict == FAIL] == []
    subjects = {
        "yarn",
        "yarn.dialect",
        "yarn.calculator",
        "yarn.maximum",
        "yarn.nodes",
        "yarn.nodes.gpus",
        "clock.yarn",
    }
    subjects |= {"yarn.timeline", "yarn.logs", "yarn.recovery", "yarn.queues", "hdfs.home", "hdfs.write", "clock.hdfs"}
    subjects |= {"node", "node.python", "node.disk", "node.hdfs.write"}
    assert {subject: found[subject].verdict for subject in subjects if subject in found} == dict.fromkeys(
        subjects, PASS
    )
    assert found["hdfs.protocol"] == Finding(
        PASS, "hdfs.protocol", "storage.hdfs=auto: files go by HDFS's own protocols"
    )
    assert found["yarn"].found == f"Hadoop {VERSION} at {hadoop.rm_url}, active"
    assert sys.executable in found["node.python"].found
    # What the test clusters have otherwise.
    assert found["node.recovery"].verdict == WARN
    assert (found["gpu.ledger"].verdict, found["gpu.ledger"].repair) == (WARN, "set gpuid.zookeeper.ensemble")
    # The container that looked around is no application of the user's.
    probe = rest.reports(kind="DLAPP-PROBE")[-1]
    assert (probe.name, probe.final_status.value) == ("dlapp-doctor", "SUCCEEDED")


@pytest.mark.slow
@pytest.mark.usefixtures("configured")
def test_a_node_without_python_is_a_failure_with_the_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLAPP_YARN_PYTHON", "/no/such/python3")
    last = list(diagnosis(cluster="yarn", node="any"))[-1]
    assert (last.verdict, last.subject) == (FAIL, "node")
    assert "there is no /no/such/python3 on" in last.found
    assert "set yarn.python" in last.found


@pytest.mark.slow
@pytest.mark.usefixtures("configured")
def test_all_nodes_are_checked_by_an_application_on_each() -> None:
    found = [finding for finding in diagnosis(cluster="yarn", node="all") if finding.node]
    assert {item.node for item in found} == set(NODES.values())
    for node in NODES.values():
        verdicts = {finding.subject: finding.verdict for finding in found if finding.node == node}
        assert {verdicts[value] for value in ("node", "node.python", "node.disk", "node.hdfs.write")} == {PASS}
    lines = node_table(found)
    assert len(lines) == 3
    assert lines[0].split() == ["NODE", "PASS", "WARN", "FAIL"]


class Cluster:
    """The answers of a ResourceManager, as `YarnRest` gives them."""

    server_time_s: float | None = None

    def __init__(self) -> None:
        self.version, self.error = "3.4.2", ""
        self.largest = {"memory-mb": 8192, "vcores": 8, "gcores": 4}
        self.counted: set[str] | None = {"memory-mb", "vcores", "gcores"}
        self.node_list = [self.node("n1:1"), self.node("n2:1")]
        self.queue_list = [QueueInfo(name="default", path="root.default", state="RUNNING", leaf=True)]
        self.settings = {"yarn.resourcemanager.recovery.enabled": "true"}

    @staticmethod
    def node(name: str, state: str = "RUNNING", gcores: int = 4, health: str = "") -> NodeInfo:
        total = {"memory-mb": 8192, "vcores": 8, "gcores": gcores}
        return NodeInfo(name=name, web="", state=state, total=total, health=health)

    def info(self) -> dict[str, Any]:
        if self.error:
            raise Unreachable(self.error)
        return {"resourceManagerVersion": self.version}

    def active_url(self) -> str:
        return "http://rm:8088"

    def new_application(self) -> NewApplication:
        return NewApplication(application_id=ApplicationId(1, 1), largest=self.largest)

    def configuration(self, name: str) -> str | None:
        return self.settings.get(name)

    def scheduled_types(self) -> set[str] | None:
        return self.counted

    def nodes(self) -> list[NodeInfo]:
        return self.node_list

    def queues(self) -> list[QueueInfo]:
        return self.queue_list


def config_of(**keys: str) -> Config:
    return load_config({name.replace("__", "."): text for name, text in keys.items()})


def findings_by_subject(cluster: Cluster, config: Config | None = None) -> Mapping[str, Finding]:
    found = _resource_manager(config or config_of(gpuid__zookeeper__ensemble="zk:2181"), cluster)  # type: ignore[arg-type]
    return {finding.subject: finding for finding in found if finding.verdict != PASS}


def test_a_cluster_where_all_is_right_is_not_talked_about() -> None:
    assert findings_by_subject(Cluster()) == {}


def test_a_resourcemanager_that_does_not_answer_or_is_too_old_is_the_only_line() -> None:
    cluster = Cluster()
    cluster.error = "http://rm:8088: connection refused; see yarn.resourcemanager.webapp.address"
    assert list(findings_by_subject(cluster)) == ["yarn"]
    cluster.error, cluster.version = "", "2.6.5"
    assert list(findings_by_subject(cluster)) == ["yarn"]
    assert findings_by_subject(cluster)["yarn"].repair == "2.7 is the least"


def test_a_calculator_that_ignores_gpus_is_a_failure_with_the_property() -> None:
    cluster = Cluster()
    cluster.counted = {"memory-mb"}
    found = findings_by_subject(cluster)["yarn.calculator"]
    assert found.verdict == FAIL
    assert found.repair.startswith("set yarn.scheduler.capacity.resource-calculator to …DominantResourceCalculator")
    cluster.counted = None
    assert findings_by_subject(cluster)["yarn.calculator"].verdict == WARN


def test_gpus_that_are_counted_and_not_offered_are_named_node_by_node() -> None:
    cluster = Cluster()
    cluster.node_list = [cluster.node("n1:1"), cluster.node("n2:1", gcores=0)]
    found = findings_by_subject(cluster)["yarn.nodes.gpus"]
    assert (found.verdict, found.found) == (WARN, "1 of 2 nodes offer no gcores: n2:1")
    assert "yarn.nodemanager.resource-type.gcores" in found.repair
    cluster.node_list = [cluster.node("n2:1", gcores=0)]
    assert findings_by_subject(cluster)["yarn.nodes.gpus"].verdict == FAIL


def test_a_cluster_without_gpus_is_a_warning_unless_configured() -> None:
    cluster = Cluster()
    del cluster.largest["gcores"]
    assert "resource-types.xml" in findings_by_subject(cluster)["yarn.dialect"].repair
    assert findings_by_subject(cluster, config_of(yarn__dialect="none")) == {}
    found = findings_by_subject(cluster, config_of(yarn__dialect="gcores"))["yarn.dialect"]
    assert (found.verdict, found.found) == (
        FAIL,
        "yarn.dialect: is gcores, and the ResourceManager counts memory-mb, vcores",
    )


def test_the_patched_hadoops_settings_are_shown() -> None:
    cluster = Cluster()
    del cluster.largest["gcores"]
    cluster.settings["yarn.scheduler.maximum-allocation-gcores"] = "8"
    found = list(_resource_manager(config_of(gpuid__zookeeper__ensemble="zk:1"), cluster))  # type: ignore[arg-type]
    assert "yarn.scheduler.maximum-allocation-gcores is 8" in [item.found for item in found]


def test_no_nodes_ill_nodes_small_maxima_and_odd_queues_each_have_their_line() -> None:
    cluster = Cluster()
    cluster.node_list = []
    assert findings_by_subject(cluster)["yarn.nodes"].verdict == FAIL
    cluster.node_list = [cluster.node("n1:1"), cluster.node("n2:1", "UNHEALTHY", health="1/1 local-dirs\nare bad")]
    assert findings_by_subject(cluster)["yarn.nodes.health"].found == "n2:1 is unhealthy: 1/1 local-dirs are bad"
    cluster.largest["memory-mb"] = 2048
    assert "lower defaults.memory" in findings_by_subject(cluster)["yarn.maximum"].repair
    cluster.largest["memory-mb"] = 128
    assert findings_by_subject(cluster)["yarn.maximum"].verdict == FAIL
    cluster.queue_list = [QueueInfo(name="a", path="root.a", state="RUNNING", leaf=True)]
    assert "name another in [application]" in findings_by_subject(cluster)["yarn.queues"].repair
    cluster.queue_list = [QueueInfo(name="default", path="root.default", state="STOPPED", leaf=True)]
    assert findings_by_subject(cluster)["yarn.queues"].verdict == FAIL
    with pytest.raises(SpecError, match="takes no applications"):
        check_queue(cluster.queue_list, "default", "ann")
    cluster.settings = {"yarn.resourcemanager.am.max-attempts": "1"}
    assert {"yarn.recovery", "yarn.attempts"} <= set(findings_by_subject(cluster))


def test_a_log_server_that_does_not_answer_is_a_warning() -> None:
    def log_server_finding(url: str) -> Finding:
        settings = {"yarn.log-aggregation-enable": "true", "yarn.log.server.url": url}
        (one,) = [
            finding
            for finding in _history(HadoopConfiguration(settings, "here"), Login("tony"))
            if finding.subject == "yarn.logs"
        ]
        return one

    with http_server(lambda _: Answer(501)) as base:
        url = f"{base}/logs"
        one = log_server_finding(url)
    assert (one.verdict, one.found) == (PASS, f"collected, and shown at {url}")
    one = log_server_finding(url)
    assert (one.verdict, one.repair) == (WARN, "start the history server, or correct yarn.log.server.url")
    assert one.found.startswith(f"collected, but {url} does not answer: ")


def test_clocks_that_differ_are_a_warning() -> None:
    cluster = Cluster()
    cluster.server_time_s = time.time() - 120
    found = findings_by_subject(cluster)["clock.yarn"]
    assert (found.verdict, found.repair) == (WARN, "run NTP on both")
    cluster.server_time_s = time.time()
    assert "clock.yarn" not in findings_by_subject(cluster)


@pytest.mark.slow
def test_every_nameservice_is_checked_and_configured_ones_must_answer(
    hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_hdfs, "REQUEST_TIMEOUT_S", 20.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        services = {
            "east": hadoop.hdfs_url,
            "gone": "http://127.0.0.1:1",
            "mounted": "http://127.0.0.1:1",
            "silent": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }
        place = HdfsPlace(
            "hdfs://nn",
            ("http://127.0.0.1:1",),
            Login("tony"),
            others=tuple(HdfsService(f"hdfs://{name}", (web,), (name,)) for name, web in services.items()),
            mounts=(MountTable("all", {"/data": "hdfs://mounted/data", "/bucket": "s3a://b"}, {}),),
        )
        (check,) = (
            item for item in doctor_hdfs.checks(CheckContext(load_config({}), hdfs=place)) if "." in item.subject
        )
        found = {finding.subject: finding for finding in check.run()}
    verdicts = {"hdfs.east": PASS, "hdfs.gone": WARN, "hdfs.mounted": FAIL, "hdfs.silent": WARN}
    assert {name: one.verdict for name, one in found.items()} == verdicts
    assert "127.0.0.1:1 connection refused" in found["hdfs.gone"].found
    assert "applications that name it cannot be submitted" in found["hdfs.gone"].repair


def test_a_missing_home_directory_is_a_failure_with_the_commands_to_create_it(
    hadoop: Hadoop, configured: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody9")
    found = {finding.subject: finding for finding in diagnosis(cluster="yarn")}
    assert found["hdfs.home"].verdict == FAIL
    assert "hdfs dfs -mkdir -p /user/nobody9" in found["hdfs.home"].found
    assert "nobody9 (from HADOOP_USER_NAME)" in found["hadoop.user"].found
