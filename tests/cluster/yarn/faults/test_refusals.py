"""Test what can be wrong with a cluster, its configuration or an ask: one line each, with the setting to mend."""

from __future__ import annotations

import getpass
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from dlapp.application.description import read_application
from dlapp.client import Client
from dlapp.cluster.yarn.client import rest
from dlapp.config import load_config
from dlapp.errors import (
    ConfigError,
    Denied,
    DlappError,
    FileRefused,
    NotFound,
    RequestTooLarge,
    Unreachable,
    UsageError,
)
from dlapp.values.ids import ApplicationId
from dlapp.values.report import Cause
from tests.applications import properties
from tests.cluster.yarn.on_yarn import set_safe_mode, until
from tests.services.hadoop import VERSION, Hadoop, NoHadoop, _write_xml, free_ports, read_configuration
from tests.services.http.tls import tls_in_front

Make = Callable[..., Client]


@pytest.fixture
def client_of(hadoop: Hadoop, tmp_path: Path) -> Iterator[Make]:
    """Makes clients of the cluster: yarn-site.xml with other properties (None: without), and other keys of ours."""
    made: list[Client] = []

    def make(site: dict[str, str | None] | None = None, **keys: str) -> Client:
        directory = tmp_path / f"conf-{len(made)}"
        shutil.copytree(hadoop.configuration, directory)
        path = directory / "yarn-site.xml"
        properties = {**read_configuration(path), **(site or {})}
        _write_xml(path, {name: text for name, text in properties.items() if text is not None})
        options = {"cluster": "yarn", "yarn.conf_dir": str(directory), "yarn.python": sys.executable}
        made.append(Client(load_config({**options, **{key.replace("__", "."): text for key, text in keys.items()}})))
        return made[-1]

    yield make
    for item in made:
        item.engine.close()


def file_of(
    directory: Path, *, resources: Mapping[str, object] | None = None, script: str = "true", **application: str
) -> str:
    amounts = {"memory": "256m", "gcores": None, **(resources or {})}
    return str(properties(directory, script, application=application, resources=amounts))


def refused(client: Client, path: str, kind: type[DlappError]) -> str:
    """Return what the submission was refused with: one line."""
    with pytest.raises(kind) as caught:
        client.submit(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- queues ----


@pytest.mark.parametrize(
    ("queue", "kind", "words"),
    [
        ("nowhere", FileRefused, "there is no queue 'nowhere'; there are default, research"),
        ("root", FileRefused, "'root' has queues under it, name one of them: default"),
        ("closed", FileRefused, "it is STOPPED (yarn.scheduler.capacity.root.closed.state)"),
        ("full", Denied, "it has 0 applications, the maximum is 0 (yarn.scheduler.capacity.root.full.maximum-appl"),
    ],
)
def test_a_queue_that_accepts_no_applications_is_refused(
    client_of: Make, tmp_path: Path, queue: str, kind: type[DlappError], words: str
) -> None:
    assert words in refused(client_of(), file_of(tmp_path, queue=queue), kind)


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ("nowhere", "there is no queue 'nowhere' (yarn.scheduler.capacity.root.queues)"),
        ("closed", "'closed' takes no applications, it is STOPPED (yarn.scheduler.capacity.root.closed.state)"),
        ("full", "is full now: it has 0 applications (yarn.scheduler.capacity.root.full.maximum-applications)"),
    ],
)
def test_a_queue_that_changed_after_the_check_is_refused_alike(
    client_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: str, words: str
) -> None:
    monkeypatch.setattr("dlapp.cluster.yarn.client.preflight.check_queue", lambda *_: None)
    kind = Denied if queue == "full" else UsageError
    message = refused(client_of(), file_of(tmp_path, queue=queue), kind)
    assert message.startswith("application.queue: ")
    assert message.endswith(words)


def test_a_queue_of_others_is_refused(client_of: Make, hadoop: Hadoop, tmp_path: Path) -> None:
    for change in ("op=MKDIRS", "op=SETOWNER&owner=tony"):
        url = f"{hadoop.hdfs_url}/webhdfs/v1/user/tony?{change}&user.name={getpass.getuser()}"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60).close()
    message = refused(client_of(), file_of(tmp_path, queue="locked", username="tony"), Denied)
    setting = "yarn.scheduler.capacity.root.locked.acl_submit_applications"
    instead = "queues that take applications of tony: default, research"
    assert message == f"application.queue: tony may not submit to 'locked' ({setting}); {instead}"


# ---- amounts ----


def test_an_ask_above_a_maximum_names_its_setting(client_of: Make, tmp_path: Path) -> None:
    client = client_of(gpuid__zookeeper__ensemble="127.0.0.1:1")
    for resources, setting in (
        ({"memory": "64g"}, "yarn.scheduler.maximum-allocation-mb"),
        ({"vcores": 99}, "yarn.scheduler.maximum-allocation-vcores"),
        ({"gcores": 99}, "yarn.resource-types.gcores.maximum-allocation"),
    ):
        message = refused(client, file_of(tmp_path, resources=resources), RequestTooLarge)
        assert "the maximum of the cluster is" in message
        assert setting in message


def test_unknown_node_names_are_reported_with_the_nearest(client_of: Make, tmp_path: Path) -> None:
    client = client_of()
    (here, *_) = client.engine.node_names()
    file = file_of(tmp_path, resources={"exclude_nodes": f"{here}x"})
    notes: list[str] = []
    application_id = client.submit(file, note=notes.append)
    assert notes == [f"resources.exclude_nodes: no node '{here}x' runs now, the nearest is {here}"]
    assert client.wait(application_id, timeout_s=240).cause is Cause.SUCCEEDED


def test_a_dialect_that_the_cluster_has_not_is_refused(client_of: Make, tmp_path: Path) -> None:
    message = refused(client_of(yarn__dialect="yarn.io/gpu"), file_of(tmp_path), ConfigError)
    assert message == "yarn.dialect: is yarn.io/gpu, and the ResourceManager counts gcores, memory-mb, vcores"
    client = client_of(yarn__dialect="none")
    message = refused(client, file_of(tmp_path, resources={"gcores": 1}), RequestTooLarge)
    assert (
        message.partition(": resources.gcores: ")[2]
        == "asked for 1 gcore, and the cluster counts no GPUs (yarn.dialect: none)"
    )


# ---- HDFS ----


def test_a_user_without_a_home_directory_gets_the_repair(client_of: Make, tmp_path: Path) -> None:
    message = refused(client_of(), file_of(tmp_path, username="nobody9"), NotFound)
    assert "nobody9 has no home directory" in message
    assert "hdfs dfs -mkdir -p /user/nobody9 && hdfs dfs -chown nobody9 /user/nobody9" in message
    elsewhere = client_of({"dfs.user.home.dir.prefix": "/homes"})
    message = refused(elsewhere, file_of(tmp_path, username="nobody9"), NotFound)
    assert "/homes/nobody9 is not there, and the NameNode has the home of nobody9 at /user/nobody9: set " in message
    assert message.endswith("dfs.user.home.dir.prefix to /user in hdfs-site.xml")


def test_an_hdfs_that_is_not_there_is_refused_in_seconds_with_the_settings(client_of: Make, tmp_path: Path) -> None:
    nowhere = {"fs.defaultFS": "hdfs://127.0.0.1:1", "dfs.namenode.http-address": "127.0.0.1:1"}
    client = client_of(nowhere)  # yarn-site.xml is read last, so it may stand there as well
    began = time.monotonic()
    message = refused(client, file_of(tmp_path), Unreachable)
    assert time.monotonic() - began < 15
    assert "127.0.0.1:1 connection refused" in message
    assert message.endswith("see dfs.namenode.rpc-address, dfs.namenode.http-address and dfs.http.policy")


def test_an_hdfs_with_tls_on_one_side_only_is_refused_with_the_policy(
    client_of: Make, hadoop: Hadoop, tmp_path: Path
) -> None:
    where = address(hadoop, "nn_http")
    client = client_of({"dfs.http.policy": "HTTPS_ONLY", "dfs.namenode.https-address": where})
    message = refused(client, file_of(tmp_path), Unreachable)
    assert message == f"https://{where} uses plain HTTP, not TLS; set dfs.http.policy to HTTP_ONLY"
    with tls_in_front(tmp_path, ("127.0.0.1", hadoop.ports["nn_http"])) as where:
        client = client_of({"dfs.namenode.http-address": where}, storage__hdfs="webhdfs")
        message = refused(client, file_of(tmp_path), Unreachable)
    assert message == f"http://{where} uses TLS, not plain HTTP; set dfs.http.policy to HTTPS_ONLY"


def test_a_submission_to_an_hdfs_in_safe_mode_is_refused(hadoop: Hadoop, client_of: Make, tmp_path: Path) -> None:
    client = client_of()
    set_safe_mode(hadoop, on=True)
    try:
        assert "safe mode" in refused(client, file_of(tmp_path), Unreachable)
    finally:
        set_safe_mode(hadoop, on=False)


# ---- the ResourceManager ----


class Others(NamedTuple):
    """Two ResourceManagers beside the cluster's: one on standby, and one that knows of no application."""

    standby: Hadoop
    fresh: Hadoop


@pytest.fixture(scope="module")
def others(hadoop: Hadoop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Others]:
    ports = free_ports()
    prefix = "yarn.resourcemanager"
    standing_by = {
        f"{prefix}.ha.enabled": "true",
        f"{prefix}.ha.automatic-failover.enabled": "false",
        f"{prefix}.cluster-id": "tests",
        f"{prefix}.ha.rm-ids": "a,b",
        f"{prefix}.ha.id": "a",
        **{
            f"{prefix}.{name}.{item}": f"127.0.0.1:{ports[port] if item == 'a' else 1}"
            for item in "ab"
            for name, port in (
                ("address", "rm"),
                ("scheduler.address", "rm_scheduler"),
                ("resource-tracker.address", "rm_tracker"),
                ("admin.address", "rm_admin"),
                ("webapp.address", "rm_http"),
            )
        },
    }
    patched = {
        "yarn.scheduler.maximum-allocation-gcores": "2",
        "yarn.scheduler.minimum-allocation-gcores": "0",
        "yarn.nodemanager.resource.gcores": "1",
    }
    try:
        standby = Hadoop.start(
            tmp_path_factory.mktemp("standby"),
            ports=ports,
            parts=("rm",),
            wait=False,
            settings={"yarn-site.xml": standing_by},
        )
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")
    with (
        standby,
        Hadoop.start(
            tmp_path_factory.mktemp("fresh"),
            parts=("rm",),
            wait=False,
            settings={"yarn-site.xml": patched, "resource-types.xml": {"yarn.resource-types": ""}},
        ) as fresh,
    ):
        for one in (standby, fresh):
            until(lambda item=one: answers(item), 120)  # type: ignore[misc]
        yield Others(standby, fresh)


def answers(hadoop: Hadoop) -> bool:
    try:
        found = hadoop.get(f"{hadoop.rm_url}/ws/v1/cluster/info")["clusterInfo"]
        return bool(found["state"] == "STARTED" and found["haState"] in ("ACTIVE", "STANDBY"))
    except OSError:
        return False


def address(hadoop: Hadoop, port: str = "rm_http") -> str:
    return f"127.0.0.1:{hadoop.ports[port]}"


@pytest.mark.slow
def test_a_resourcemanager_on_standby_alone_is_refused_and_beside_the_active_one_passed_over(
    client_of: Make, hadoop: Hadoop, others: Others, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "yarn.resourcemanager"
    alone = client_of({f"{name}.webapp.address": address(others.standby)})
    message = refused(alone, file_of(tmp_path), Unreachable)
    assert "is on standby; name all of them in yarn.resourcemanager.ha.rm-ids" in message
    with pytest.raises(Unreachable, match="is on standby"):
        alone.views_of_all()
    two: dict[str, str | None] = {f"{name}.ha.enabled": "true", f"{name}.ha.rm-ids": "a,b"}
    for one, where in (("a", others.standby), ("b", hadoop)):
        two[f"{name}.webapp.address.{one}"] = address(where)
        two[f"{name}.scheduler.address.{one}"] = address(where, "rm_scheduler")
        two[f"{name}.address.{one}"] = address(where, "rm")
    both = client_of(two)
    assert both.engine.info().version == VERSION
    end = both.wait(both.submit(file_of(tmp_path)), timeout_s=240)
    assert end.final_status.value == "SUCCEEDED", end.diagnostics
    none = client_of({**two, f"{name}.webapp.address.b": "127.0.0.1:1"})
    monkeypatch.setattr(rest, "ACTIVE_TIMEOUT_S", 2.0)
    message = refused(none, file_of(tmp_path), Unreachable)
    assert message.startswith("no active ResourceManager in 2 s: http://127.0.0.1:")


@pytest.mark.parametrize("server", ["rm", "nn_http", "nobody"])
def test_a_wrong_port_is_refused_with_the_setting(client_of: Make, hadoop: Hadoop, tmp_path: Path, server: str) -> None:
    where = "127.0.0.1:1" if server == "nobody" else address(hadoop, server)
    client = client_of({"yarn.resourcemanager.webapp.address": where})
    for message in (refused(client, file_of(tmp_path), Unreachable), status_of(client)):
        assert message.startswith(f"http://{where}: ")
        assert message.endswith("see yarn.resourcemanager.webapp.address")


def status_of(client: Client) -> str:
    with pytest.raises(Unreachable) as caught:
        client.status(ApplicationId(1, 1))
    return str(caught.value)


def test_tls_on_one_side_alone_is_refused_with_the_policy(
    client_of: Make, hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure: dict[str, str | None] = {"yarn.http.policy": "HTTPS_ONLY"}
    client = client_of({**secure, "yarn.resourcemanager.webapp.https.address": address(hadoop)})
    message = refused(client, file_of(tmp_path), Unreachable)
    assert message.endswith("it uses plain HTTP, not TLS; set yarn.http.policy to HTTP_ONLY")
    with tls_in_front(tmp_path, ("127.0.0.1", hadoop.ports["rm_http"])) as where:
        plain = client_of({"yarn.resourcemanager.webapp.address": where})
        assert refused(plain, file_of(tmp_path), Unreachable).endswith(
            "it uses TLS, not plain HTTP; set yarn.http.policy to HTTPS_ONLY"
        )
        site_settings = {**secure, "yarn.resourcemanager.webapp.https.address": where}
        message = refused(client_of(site_settings), file_of(tmp_path), Unreachable)
        assert "it has a certificate that is not trusted (self-signed certificate); SSL_CERT_FILE names" in message
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        assert client_of(site_settings).engine.info().version == VERSION


@pytest.mark.slow
def test_the_timeline_server_knows_applications_that_the_resourcemanager_forgot(
    client_of: Make, others: Others, tmp_path: Path
) -> None:
    first = client_of()
    end = first.wait(first.submit(file_of(tmp_path)), timeout_s=240)
    later = client_of({"yarn.resourcemanager.webapp.address": address(others.fresh)})

    def has_ended() -> bool:
        # The timeline server learns of it some time after the ResourceManager.
        try:
            return later.status(end.application_id).state.ended
        except NotFound:
            return False

    until(has_ended)
    seen = later.status(end.application_id)
    assert (seen.state, seen.final_status, seen.appname) == (end.state, end.final_status, end.appname)
    assert [container.exit_code for container in seen.containers] == [0]
    assert later.kill(end.application_id) == f"{end.application_id} had already ended: succeeded"
    assert "is not known to YARN, nor to its timeline server" in not_found(later)
    for listed in (later.list(), later.list(everybody=True)):
        (one,) = [view for view in listed if view.application_id == end.application_id]
        assert (one.state, one.final_status, one.appname) == (end.state, end.final_status, end.appname)
    assert [view.application_id for view in later.list(finished=1)] == [later.list()[-1].application_id]
    assert not later.list(user="nobody9")
    without = client_of(
        {"yarn.resourcemanager.webapp.address": address(others.fresh), "yarn.timeline-service.enabled": "false"}
    )
    assert "is not known to YARN (dlapp-list -a shows what is)" in not_found(without)
    silent = client_of(
        {
            "yarn.resourcemanager.webapp.address": address(others.fresh),
            "yarn.timeline-service.webapp.address": "127.0.0.1:1",
        }
    )
    # One's own are in the history on HDFS, whatever a timeline server knows.
    for by_history in (without, silent):
        (one,) = [view for view in by_history.list() if view.application_id == end.application_id]
        assert (one.state, one.final_status, one.appname) == (end.state, end.final_status, end.appname)


def not_found(client: Client) -> str:
    with pytest.raises(NotFound) as caught:
        client.status(ApplicationId(1, 1))
    return str(caught.value)


def test_the_patched_hadoops_three_settings_are_limits(client_of: Make, others: Others, tmp_path: Path) -> None:
    site: dict[str, str | None] = {"yarn.resourcemanager.webapp.address": address(others.fresh)}
    client = client_of(site, gpuid__zookeeper__ensemble="127.0.0.1:1", gpuid__zookeeper__credentials="none")
    message = refused(client, file_of(tmp_path, resources={"gcores": 3}), RequestTooLarge)
    problem = "asked for 3 gcores in one container, the maximum is 2 (yarn.scheduler.maximum-allocation-gcores)"
    assert message.partition(": resources.gcores: ")[2] == problem
    file = file_of(tmp_path, resources={"gcores": 2})
    spec = read_application(file, client.config, client.engine.info()).spec
    lines = client.engine.check(spec)
    assert "a node has 1 gcores (yarn.nodemanager.resource.gcores); a container of 2 waits for one that" in lines[0]


# ---- the log server ----


@pytest.mark.slow
def test_logs_that_no_server_shows_are_read_from_hdfs(client_of: Make, tmp_path: Path) -> None:
    # The task notes the sizes of both streams ten times a second, one line each: that orders them.
    noted = 'until [ -s "$(dirname "$(readlink /proc/$$/fd/1)")/dlapp.times" ]; do sleep 0.05; done'
    script = f'echo "oh $CONTAINER_INDEX" >&2; {noted}; seq 1 30000'
    path = file_of(tmp_path, script=script, resources={"containers": 2})
    numbers = b"".join(b"%d\n" % number for number in range(1, 30_001))
    client = client_of({"yarn.log.server.url": "http://127.0.0.1:1/applicationhistory/logs"})
    application_id = client.submit(path)
    lost: list[str] = []

    def printed(**options: object) -> dict[tuple[int, str], bytes]:
        found: dict[tuple[int, str], bytes] = {}
        for piece in client.logs(application_id, missing=lost.append, **options):  # type: ignore[arg-type]
            key = (piece.log.index, piece.stream)
            found[key] = found.get(key, b"") + piece.data
        return found

    everything = {(index, "stdout"): numbers for index in (0, 1)}
    everything |= {(index, "stderr"): b"oh %d\n" % index for index in (0, 1)}
    # What was shown while it ran is not shown again when it comes from another place.
    assert printed(follow=True) == everything
    collected = printed()
    assert collected == everything
    assert list(collected) == [(0, "stderr"), (0, "stdout"), (1, "stderr"), (1, "stdout")], "by the collected times"
    assert printed(container=1, streams=("stdout",), last_lines=2) == {(1, "stdout"): b"29999\n30000\n"}
    assert lost == []
    # Where it is it is found, also by who submits elsewhere.
    with Client(load_config({"cluster": "local", "yarn.conf_dir": client.config.yarn.conf_dir or ""})) as here:
        assert str(here.resolve("last")) == str(application_id)
        assert here.status(application_id).state.value == "FINISHED"
        assert here.kill(application_id) == f"{application_id} had already ended: succeeded"
