"""Test the reasons of waits on a real YARN with two nodes and several queues, and the changes that end them.

Each change that `dlapp-why` names is applied, and the application starts: `Cluster.apply`. There is none where the
request is not what is in the way: other applications come first (a reserved node, and those behind it), a role or an
application is waited for, a service is away (ZooKeeper), the application is held or starts.

In other files are GPUs in quarantine (faults/test_short_of_devices.py), and waits for other applications and for a
release (tests/end_to_end/test_start_conditions.py).
"""

from __future__ import annotations

import getpass
import json
import re
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.errors import ConfigError, Denied, FileRefused, RequestTooLarge
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, State
from dlapp.values.waiting import Waiting
from tests.applications import properties
from tests.cluster.yarn.on_yarn import until
from tests.services.hadoop import NODES, Hadoop, NoHadoop
from tests.services.http.http_server import http_server
from tests.services.http.webhook import Hook

pytestmark = [pytest.mark.slow, pytest.mark.hadoop]
ROOT = "yarn.scheduler.capacity.root"
ONE, TWO = NODES.values()


def without_times(message: str) -> str:
    """Leave out times of the day: one that is computed again may be a second later."""
    return re.sub(r"\d\d:\d\d:\d\d", "(time)", message)


def queues() -> dict[str, str]:
    """Properties of queues: small has little at most, mine little for one user, masters one ApplicationMaster and no
    access to labels, single takes one application, and the queue above inner has little."""
    keys: dict[str, dict[str, float]] = {
        "default": {"capacity": 45, "user-limit-factor": 10},
        "single": {"capacity": 5, "maximum-capacity": 100, "user-limit-factor": 10, "maximum-applications": 1},
        "small": {"capacity": 20, "maximum-capacity": 25, "user-limit-factor": 10},
        "mine": {"capacity": 10, "maximum-capacity": 100, "user-limit-factor": 1},
        "masters": {
            "capacity": 10,
            "maximum-capacity": 100,
            "maximum-am-resource-percent": 0.03,
            "user-limit-factor": 10,
        },
    }
    found = {f"{ROOT}.queues": ",".join((*keys, "above")), f"{ROOT}.accessible-node-labels": "*"}
    found |= {f"{ROOT}.above.queues": "inner", f"{ROOT}.above.capacity": "10", f"{ROOT}.above.maximum-capacity": "25"}
    keys["above.inner"] = {"capacity": 100, "maximum-am-resource-percent": 1, "user-limit-factor": 10}
    found[f"{ROOT}.above.accessible-node-labels.fast.capacity"] = "0"
    found[f"{ROOT}.accessible-node-labels.fast.capacity"] = "100"
    for name, values in keys.items():
        found |= {f"{ROOT}.{name}.{key}": str(value) for key, value in values.items()}
        found[f"{ROOT}.{name}.acl_submit_applications"] = "*"
        share = "100" if name == "default" else "0"
        found[f"{ROOT}.{name}.accessible-node-labels.fast.capacity"] = share
    del found[f"{ROOT}.masters.accessible-node-labels.fast.capacity"]
    return found | {f"{ROOT}.masters.accessible-node-labels": " "}


@pytest.fixture(scope="module")
def queued(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    """A cluster with these queues and with node labels."""
    labels = tmp_path_factory.mktemp("labels")
    site = {"yarn.node-labels.enabled": "true", "yarn.node-labels.fs-store.root-dir": f"file://{labels}"}
    try:
        with Hadoop.start(settings={"capacity-scheduler.xml": queues(), "yarn-site.xml": site}) as one:
            url = f"{one.rm_url}/ws/v1/cluster/add-node-labels?user.name={getpass.getuser()}"
            body = json.dumps({"nodeLabelInfo": [{"name": "fast", "exclusivity": True}]}).encode()
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
            urllib.request.urlopen(request, timeout=60).close()
            yield one
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


class Cluster:
    """Submits applications that run until they are killed."""

    def __init__(self, client: Client, directory: Path) -> None:
        self.client, self._directory = client, directory
        self._made: list[ApplicationId] = []

    def submit(self, name: str, sets: dict[str, object]) -> ApplicationId:
        file = properties(self._directory, "sleep 600", name=name, resources={"memory": 256})
        overrides = {key: str(value) for key, value in sets.items()}
        one = self.client.submit(str(file), overrides=overrides).application_id
        self._made.append(one)
        return one

    def running(self, name: str, **sets: object) -> ApplicationId:
        """Submit one and wait until its program runs."""
        return self.until_running(self.submit(name, _keys(sets)))

    def apply(self, one: ApplicationId, why: Waiting, name: str, **sets: object) -> ApplicationId:
        """Submit an application that waits again, with the change that its reason names, and see that it starts.

        One with GPUs has started when it has its containers: its tasks wait for the ledger.
        """
        keys = _keys(sets)
        if without := re.match(r"without (\w+): now", why.change):
            del keys[f"resources.{without[1]}"]
        else:
            option = re.search(r": now.* \(--set ([\w.]+)=(\S+)\)$", why.change)
            assert option is not None, (why.message, why.change)
            keys[option[1]] = option[2]
        self.kill(one)
        return self.until_running(self.submit(name, keys))

    def until_running(self, one: ApplicationId) -> ApplicationId:
        started = {Phase.RUNNING, Phase.LEASING}
        try:
            until(lambda: started & {each.phase for each in self.client.status(one).containers}, 120)
        except AssertionError:
            view = self.client.status(one)
            raise AssertionError(f"{one} does not run: {view} {view.waiting} {view.containers}") from None
        return one

    def waiting(self, name: str, code: str, **sets: object) -> tuple[ApplicationId, Waiting]:
        """Submit one and wait until it waits for this reason; the reason in full."""
        one = self.submit(name, _keys(sets))
        seen: list[str] = []

        def reason() -> Waiting | None:
            """Return what `why` says, once the status says the same: YARN's numbers may change between the two."""
            found = self.client.status(one).waiting
            if found is None or found.code != code:
                seen.append("" if found is None else found.code)
                return None
            full = self.client.why(one).waiting
            seen.append(f"{found.message}, and in full: {'' if full is None else full.message}")
            if full is None or (full.code, without_times(full.message)) != (code, without_times(found.message)):
                return None
            return full

        try:
            return one, until(reason)
        except AssertionError:
            raise AssertionError(
                f"{name}: not {code}: {list(dict.fromkeys(seen))}: {self.client.status(one)}"
            ) from None

    def kill(self, *applications: ApplicationId) -> None:
        for application in applications:
            self.client.kill(application)

    def end(self) -> None:
        for item in self._made:
            if not self.client.status(item).state.ended:
                self.client.kill(item)


def _keys(sets: dict[str, object]) -> dict[str, object]:
    of_application = ("queue", "gang", "notify")
    return {f"{'application' if key in of_application else 'resources'}.{key}": value for key, value in sets.items()}


@pytest.fixture
def options(queued: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the configuration of the cluster's user."""
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    tmp_path.chmod(0o755)
    return {
        "cluster": "yarn",
        "yarn.conf_dir": str(queued.configuration),
        "yarn.python": sys.executable,
        # Nobody is there: tasks wait for it, and hold their GPUs of YARN's meanwhile.
        "gpuid.zookeeper.ensemble": "127.0.0.1:1",
        "gpuid.zookeeper.credentials": "none",
        "local.state_dir": str(tmp_path / "state"),
    }


@pytest.fixture
def cluster(options: dict[str, str], tmp_path: Path) -> Iterator[Cluster]:
    with Client(load_config(options, environ={})) as client:
        one = Cluster(client, tmp_path)
        yield one
        one.end()


def listed(client: Client, one: ApplicationId) -> ApplicationView:
    (found,) = [each for each in client.list() if each.application_id == one]
    return found


def test_queue_user_and_am_limits_are_named_with_a_change_that_works(cluster: Cluster) -> None:
    client = cluster.client
    first = cluster.running("first", queue="small", memory=1536)
    one, why = cluster.waiting("second", "queue_limit", queue="small", memory=512)
    assert (why.resource, why.asked, why.available) == ("memory", 512, 0)
    assert [ahead.id for ahead in why.ahead] == [str(first)]
    assert why.ahead[0].amounts["memory"] == 1792
    assert why.since_ms is not None
    assert why.change.startswith("queue default: now, on 127.0.1.")
    same = Waiting(**{**_fields(why), "ahead": ()})
    until(lambda: listed(client, one).waiting == same)
    cluster.kill(cluster.apply(one, why, "second", queue="small", memory=512), first)

    alone, why = cluster.waiting("user", "user_limit", queue="mine", containers=2, memory=768)
    assert "mine" in why.message
    assert "user-limit-factor" in why.message
    cluster.until_running(alone)
    assert why.change.startswith("queue default: now")
    changed = cluster.apply(alone, why, "user", queue="mine", containers=2, memory=768)
    until(lambda: [each.phase for each in client.status(changed).containers] == [Phase.RUNNING] * 2, 120)
    cluster.kill(changed)

    cluster.running("masters", queue="masters")
    one, why = cluster.waiting("masters2", "am_limit", queue="masters")
    assert "AM resource limit exceeded" in why.message
    assert why.message.endswith(f" ({ROOT}.masters.maximum-am-resource-percent)")
    # For a moment YARN's limit of a user can be what the user has.
    until(lambda: (view := client.status(one)).state is State.ACCEPTED and view.diagnostics == why.message)
    assert why.estimate is not None
    assert why.change.startswith("queue default: now")
    cluster.apply(one, why, "masters2", queue="masters")


def test_a_wait_for_the_applicationmaster_is_notified_once_by_the_next_command(
    options: dict[str, str], tmp_path: Path
) -> None:
    hook, secret = Hook(), tmp_path / "hook"
    with http_server(hook.answer) as url:
        secret.write_text(url)
        secret.chmod(0o600)
        config = load_config(options | {"notify.webhook": str(secret), "notify.waiting_after": "1s"}, environ={})
        with Client(config) as client:
            own = Cluster(client, tmp_path)
            first = own.running("first", queue="masters", notify="none")
            one = own.submit("second", _keys({"queue": "masters", "notify": "waiting, running"}))
            quiet = own.submit("third", _keys({"queue": "masters", "notify": "running"}))

            def listed_by_a_new_command() -> bool:
                with Client(config) as other:
                    assert {one, quiet} <= {each.application_id for each in other.list()}
                return bool(hook.received(str(one)))

            until(listed_by_a_new_command)
            for _ in range(2):
                listed_by_a_new_command()
                with Client(config) as other:
                    assert other.status(one).state is State.ACCEPTED
            (event,) = hook.received(str(one))
            assert (event["event"], event["appname"], event["queue"]) == ("waiting", "second", "masters")
            assert "AM resource limit exceeded" in str(event["text"])
            own.kill(first)
            # The ApplicationMaster finds the same wait, and sends its events in order.
            until(lambda: "running" in hook.events(str(one)), 120)
            assert hook.tries(str(one)) == ["waiting", "running"]
            assert "waiting" not in hook.tries(str(quiet))
            own.end()


def test_nodes_that_are_left_out_full_or_without_a_label_are_named(cluster: Cluster) -> None:
    # One ApplicationMaster fits beside it: that of the next application or its own takes memory of the other node.
    big = cluster.running("big", nodes=ONE, memory=3840)
    one, why = cluster.waiting("excluded", "excluded_nodes", exclude_nodes=TWO, memory=1024)
    assert why.change == f"without exclude_nodes: now, on {TWO}"
    cluster.kill(cluster.apply(one, why, "excluded", exclude_nodes=TWO, memory=1024))

    one, why = cluster.waiting("full", "nodes_full", memory=4096)
    assert why.resource == "memory"
    assert str(big) in [ahead.id for ahead in why.ahead]
    cluster.kill(cluster.apply(one, why, "full", memory=4096))

    gang: dict[str, object] = {"gang": "all", "containers": 2, "memory": 2560}
    one, why = cluster.waiting("gang", "gang_partial", **gang)
    assert why.message.startswith("1 of 2 held, waiting for 1 container")
    cluster.kill(cluster.apply(one, why, "gang", **gang))

    one, why = cluster.waiting("label", "label", node_label="fast", memory=256)
    assert why.message == "no node that runs has the label fast"
    assert why.change.startswith("without node_label: now")
    cluster.apply(one, why, "label", node_label="fast", memory=256)


def test_full_vcores_are_a_reason_and_with_fewer_the_application_starts(cluster: Cluster) -> None:
    """Use 10 of the 16 vcores of two nodes, beside three ApplicationMasters, and ask for 4 on one node."""
    for host in (ONE, TWO):
        cluster.running(f"on-{host}", nodes=host, vcores=5)
    one, why = cluster.waiting("vcores", "nodes_full", vcores=4)
    assert (why.resource, why.asked) == ("vcores", 4)
    assert re.match(r"(1 vcore|2 vcores): now, on 127\.0\.1\.", why.change)  # by where the ApplicationMasters are
    cluster.apply(one, why, "vcores", vcores=4)


def test_full_gpus_are_a_reason_and_with_fewer_or_none_the_application_starts(cluster: Cluster) -> None:
    """Use 7 of the 8 GPUs of two nodes and ask for two; then use all and ask for one."""
    for host, gcores in ((ONE, 4), (TWO, 3)):
        cluster.running(f"on-{host}", nodes=host, gcores=gcores)
    one, why = cluster.waiting("two", "nodes_full", gcores=2)
    assert why.change == f"1 GPU: now, on {TWO} (--set resources.gcores=1)"
    cluster.apply(one, why, "two", gcores=2)
    one, why = cluster.waiting("one", "nodes_full", gcores=1)
    assert why.change.startswith("no GPU: now, on 127.0.1.")
    cluster.apply(one, why, "one", gcores=1)


def test_a_queue_that_takes_one_application_refuses_the_second_until_the_first_has_ended(cluster: Cluster) -> None:
    """maximum-applications is 1: the second submission names it and what there is, also where it was not looked at."""
    first = cluster.running("first", queue="single")
    message = "application.queue: 'single' is full now: it has 1 application"
    setting = f"({ROOT}.single.maximum-applications)"
    with pytest.raises(Denied) as refused:
        cluster.submit("second", _keys({"queue": "single"}))
    assert str(refused.value).startswith(
        f"{message}, the maximum is 1 {setting}; submit again later, or to another queue"
    )
    with pytest.MonkeyPatch.context() as unchecked:
        unchecked.setattr("dlapp.cluster.yarn.client.preflight.check_queue", lambda *_: None)
        with pytest.raises(Denied) as refused:
            cluster.submit("second", _keys({"queue": "single"}))
    assert str(refused.value) == f"{message} {setting}"
    cluster.kill(first)
    cluster.running("second", queue="single")


def test_a_limit_of_the_queue_above_and_nodes_that_are_named_are_reasons(cluster: Cluster) -> None:
    first = cluster.running("first", queue="inner", memory=1536)
    one, why = cluster.waiting("second", "queue_limit", queue="inner", memory=512)
    assert "queue above has" in why.message
    assert f"{ROOT}.above.maximum-capacity" in why.message
    assert why.change.startswith("queue default: now")
    cluster.kill(cluster.apply(one, why, "second", queue="inner", memory=512), first)

    cluster.running("big", nodes=ONE, memory=3072)
    one, why = cluster.waiting("named", "excluded_nodes", nodes=ONE, memory=2048)
    assert why.message == f"nodes leaves out {TWO}, where there is room"
    assert why.change == f"without nodes: now, on {TWO}"
    cluster.apply(one, why, "named", nodes=ONE, memory=2048)


def test_a_full_label_is_a_reason_and_without_it_the_application_starts(cluster: Cluster, queued: Hadoop) -> None:
    label(queued, node_id(queued, TWO), "fast")
    try:
        cluster.running("holder", node_label="fast", memory=3328)
        one, why = cluster.waiting("label", "label", node_label="fast", memory=1024)
        assert why.message == f"the nodes with the label fast are full, {ONE} without it has room"
        assert why.change == f"without node_label: now, on {ONE}"
        cluster.apply(one, why, "label", node_label="fast", memory=1024)
        cluster.end()
    finally:
        label(queued, node_id(queued, TWO), "")


def master_node(hadoop: Hadoop, one: ApplicationId) -> str:
    """Return the host of an ApplicationMaster."""
    report = hadoop.get(f"{hadoop.rm_url}/ws/v1/cluster/apps/{one}")["app"]
    return str(report["amHostHttpAddress"]).partition(":")[0]


def test_containers_and_their_master_run_on_nodes_with_their_label(
    options: dict[str, str], queued: Hadoop, tmp_path: Path
) -> None:
    """One node has the label, the other one none. The ApplicationMaster has a label of its own, in the configuration;
    before a node has the label, it waits, and the reason names that key."""
    with Client(load_config(options | {"yarn.am_node_label": "fast"}, environ={})) as client:
        own = Cluster(client, tmp_path)
        first, why = own.waiting("first", "label", node_label="fast")
        assert client.status(first).state is State.ACCEPTED
        assert why.message == "no node that runs has the label fast"
        assert why.change.startswith("without yarn.am_node_label: now")
        label(queued, node_id(queued, TWO), "fast")
        try:
            own.until_running(first)
            second = own.running("second")
            hosts = [[container.host for container in client.status(each).containers] for each in (first, second)]
            assert hosts == [[TWO], [ONE]]
            assert [master_node(queued, each) for each in (first, second)] == [TWO, TWO]
        finally:
            own.end()
            label(queued, node_id(queued, TWO), "")


def test_a_label_that_the_queue_may_not_use_is_refused_with_the_queues_that_may(
    cluster: Cluster, options: dict[str, str], tmp_path: Path
) -> None:
    setting = f"{ROOT}.masters.accessible-node-labels"
    others = "queues that may: default, single, small"
    message = f"the queue 'masters' may not use nodes with the label 'fast' ({setting}); {others}"
    with pytest.raises(FileRefused) as refused:
        cluster.submit("label", _keys({"queue": "masters", "node_label": "fast"}))
    assert f": resources.node_label: {message}" in str(refused.value)
    with Client(load_config(options | {"yarn.am_node_label": "fast"}, environ={})) as client:
        with pytest.raises(ConfigError) as wrong:
            Cluster(client, tmp_path).submit("master", _keys({"queue": "masters"}))
        assert str(wrong.value).startswith(f"yarn.am_node_label: {message}")


def test_a_container_with_a_reservation_waits_for_that_node_only(cluster: Cluster, queued: Hadoop) -> None:
    """Each node of 4 GiB has 1.5 GiB free at most, so YARN reserves a node for 1.75 GiB; that is no container yet.

    An application that asks for 256 MiB on that node waits, too, though there is room. On the other one it runs.
    """
    client = cluster.client
    first, _ = (cluster.running(f"on-{host}", nodes=host, memory=2560) for host in (ONE, TWO))
    one = cluster.submit("reserved", _keys({"memory": 1792}))
    app = f"{queued.rm_url}/ws/v1/cluster/apps/{one}"
    until(lambda: queued.get(app)["app"]["reservedMB"] == 1792)
    for view in (client.status(one), client.why(one), listed(client, one)):
        assert view.waiting is not None
        assert (view.waiting.code, view.waiting.resource, view.waiting.asked) == ("nodes_full", "memory", 1792), view
        assert "running" not in view.phase
    assert client.status(one).containers == ()
    behind = [cluster.submit(f"behind-{host}", _keys({"nodes": host})) for host in (ONE, TWO)]

    def reasons() -> list[str]:
        found = [client.status(each).waiting for each in behind]
        return sorted("" if each is None else each.message.partition(", the room on ")[2] for each in found)

    until(
        lambda: (
            [text.partition(" ")[2] for text in reasons()] == ["", "may be reserved for a larger container that waits"]
        )
    )
    cluster.kill(first, *behind)
    cluster.until_running(one)
    assert queued.get(app)["app"]["reservedMB"] == 0


def test_a_role_that_waits_for_another_is_a_reason(cluster: Cluster, tmp_path: Path) -> None:
    """Waits for other applications and for a release are in tests/end_to_end/test_start_conditions.py."""
    client = cluster.client
    roles = {
        "role trainer": {"command": "sleep 600", "memory": 256},
        "role judge": {"command": "true", "memory": 256, "depends_on": "trainer:done"},
    }
    file = properties(tmp_path, "true", name="roles", application={"gang": "none"}, **roles)
    file.write_text(file.read_text().replace("user_shell_script=start.sh\n", ""))
    one = client.submit(str(file)).application_id
    until(lambda: (found := client.status(one).waiting) is not None and found.code == "dependency", 120)
    found = client.why(one).waiting
    assert found is not None
    assert found.message == "judge waits for trainer (done)"
    cluster.kill(one)


def node_id(hadoop: Hadoop, host: str) -> str:
    nodes = hadoop.get(f"{hadoop.rm_url}/ws/v1/cluster/nodes")["nodes"]["node"]
    (found,) = [node["id"] for node in nodes if node["nodeHostName"] == host]
    return str(found)


def label(hadoop: Hadoop, node: str, name: str) -> None:
    """Give a node a label, or none."""
    query = f"user.name={getpass.getuser()}" + (f"&labels={name}" if name else "")
    url = f"{hadoop.rm_url}/ws/v1/cluster/nodes/{node}/replace-labels?{query}"
    urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=120).close()


def test_fragmented_gpus_and_an_unreachable_service_are_named(cluster: Cluster) -> None:
    for number, host in enumerate((ONE, TWO)):
        half, _ = cluster.waiting(f"half{number}", "service_away", nodes=host, gcores=2)
        until(lambda half=half: "ZooKeeper" in getattr(cluster.client.why(half).waiting, "resource", ""))  # type: ignore[misc]
    one, why = cluster.waiting("three", "gpus_fragmented", gcores=3)
    assert (why.message, why.asked, why.available) == ("4 GPUs free, 3 together nowhere", 3, 2)
    assert why.change.startswith("2 GPUs: now, on 127.0.1.")
    cluster.apply(one, why, "three", gcores=3)


def test_an_impossible_request_is_refused_with_the_limit(cluster: Cluster, tmp_path: Path) -> None:
    plan = planned(cluster, tmp_path)
    assert plan["waiting"]["code"] == "starting"
    assert sorted(plan["nodes"]["worker"]) == sorted([ONE, TWO])
    for sets, text in (
        ({"application.queue": "small", "resources.memory": "2500m"}, f"{ROOT}.small.maximum-capacity"),
        ({"resources.gcores": "5"}, "gcores"),
        ({"application.gang": "all", "resources.containers": "9", "resources.memory": "1g"}, "memory"),
        (
            {"application.gang": "all", "application.queue": "mine", "resources.containers": "5"},
            f"{ROOT}.mine.user-limit-factor",
        ),
    ):
        if text == "memory":
            waiting = planned(cluster, tmp_path, sets)["waiting"]
            assert (waiting["code"], waiting["change"]) == (
                "never_fits",
                "6 containers: now (--set resources.containers=6)",
            )
            cluster.until_running(cluster.submit("six", {**sets, "resources.containers": 6}))
            cluster.end()
            continue
        with pytest.raises(RequestTooLarge, match=text):
            planned(cluster, tmp_path, sets)


def test_a_starting_container_is_reported_as_starting(cluster: Cluster) -> None:
    # A start lasts a moment, which a busy machine can miss: then the next one is looked at.
    for _ in range(10):
        one = cluster.submit("starts", {})
        changes: list[str] = []

        def is_running(one: ApplicationId = one, changes: list[str] = changes) -> bool:
            waiting = cluster.client.why(one).waiting
            if waiting is not None and waiting.code == "starting":
                changes.append(waiting.change)
            return Phase.RUNNING in [each.phase for each in cluster.client.status(one).containers]

        until(is_running, 120)
        if changes:
            break
        cluster.kill(one)
    assert set(changes) == {""}
    assert cluster.client.status(one).waiting is None


def planned(cluster: Cluster, tmp_path: Path, sets: dict[str, str] | None = None) -> dict[str, Any]:
    from dlapp.application.overrides import OptionNames, Overrides

    file = properties(tmp_path, "true", name="plan", resources={"memory": 256})
    overrides = Overrides(sets or {}, {}, None, OptionNames("overrides", "env", "args"))
    return cluster.client.plan_json(file, overrides=overrides)


def _fields(why: Waiting) -> dict[str, Any]:
    names: Sequence[str] = ("code", "message", "resource", "asked", "available", "since_ms", "ahead")
    return {name: getattr(why, name) for name in names}
