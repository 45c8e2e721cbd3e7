"""Test what is said of an ask before it is submitted: nodes that could hold it, and names of nodes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dlapp.cluster.yarn.client.preflight import (
    check_gpus,
    check_label,
    check_label_of_queue,
    check_memory,
    check_node_names,
    check_nodes,
    check_queue,
    check_schemes,
    refusal,
)
from dlapp.cluster.yarn.client.rest import NodeInfo, QueueInfo
from dlapp.cluster.yarn.client.views import check_tags
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.errors import Denied, SpecError, Unreachable
from dlapp.values.ids import ApplicationId
from dlapp.values.spec import AppSpec, InputSpec, Placement, Resources, RoleSpec


def node(name: str, gcores: int) -> NodeInfo:
    total = {"memory-mb": 4096, "vcores": 4, "gcores": gcores}
    return NodeInfo(name=f"{name}:8041", web="", state="RUNNING", total=total)


NODES = (node("gpu1.example", 4), node("cpu1.example", 0))


@pytest.mark.parametrize(
    ("gcores", "placement", "messages"),
    [
        (4, Placement(), []),
        (0, Placement(nodes=("cpu1.example",)), []),
        (8, Placement(), ["no node that runs now can hold"]),
        (1, Placement(nodes=("cpu1.example",)), ["among those that nodes and exclude_nodes leave"]),
        (1, Placement(exclude_nodes=("gpu1.example",)), ["among those that nodes and exclude_nodes leave"]),
        (4, Placement(nodes=("gpu1.example", "gpu2.example")), []),
    ],
)
def test_a_container_too_large_for_every_node_is_a_warning(
    gcores: int, placement: Placement, messages: list[str]
) -> None:
    asked = Resources(memory_mib=1024, vcores=1, gcores=gcores)
    lines = check_nodes(asked, placement, Dialect.GCORES, NODES)
    assert len(lines) == len(messages)
    assert all(words in line for words, line in zip(messages, lines, strict=True))


def test_an_unknown_node_name_is_reported_with_the_nearest() -> None:
    assert check_node_names("resources.nodes", ("gpu1", "cpu1.example"), NODES) == [
        "resources.nodes: no node 'gpu1' runs now, the nearest is gpu1.example",
    ]
    assert check_node_names("role ps.exclude_nodes", ("cpu7.example",), NODES) == [
        "role ps.exclude_nodes: no node 'cpu7.example' runs now, the nearest is cpu1.example",
    ]
    assert check_node_names("resources.nodes", ("gpu1",), ()) == []


@pytest.mark.parametrize("setting", ["true", None])
def test_a_label_of_nodes_passes_where_the_cluster_may_have_it(setting: str | None) -> None:
    check_label("resources.node_label", "fast", lambda _: setting, list)
    check_label("resources.node_label", "fast", lambda _: setting, lambda: ["slow", "fast"])


def test_a_label_that_no_nodes_have_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"resources\.node_label.*no nodes have the label 'fats', the nearest is fast"):
        check_label("resources.node_label", "fats", lambda _: "true", lambda: ["slow", "fast"])


def test_a_label_of_nodes_is_refused_where_the_cluster_has_none() -> None:
    with pytest.raises(SpecError, match=r"role ps\.node_label.*no labels \(yarn\.node-labels\.enabled is false\)"):
        check_label("role ps.node_label", "fast", {"yarn.node-labels.enabled": "false"}.get, list)


LABELLED = [
    QueueInfo(name="root", path="root", state="RUNNING", leaf=False),
    QueueInfo(name="plain", path="root.plain", state="RUNNING", leaf=True),
    QueueInfo(name="gpus", path="root.gpus", state="RUNNING", leaf=True, raw={"nodeLabels": ["fast", "slow"]}),
    QueueInfo(name="any", path="root.any", state="RUNNING", leaf=True, raw={"nodeLabels": ["*"]}),
]


@pytest.mark.parametrize("queue", ["gpus", "root.any", "absent"])
def test_an_allowed_or_unknown_label_passes(queue: str) -> None:
    check_label_of_queue("resources.node_label", "fast", LABELLED, queue, "ann")
    check_label_of_queue("resources.node_label", "fast", LABELLED[:2], "plain", "ann")


def test_a_label_that_a_queue_may_not_use_is_refused_with_the_queues_that_may() -> None:
    setting = r"yarn\.scheduler\.capacity\.root\.plain\.accessible-node-labels"
    words = rf"resources\.node_label: the queue 'plain' may not use nodes with the label 'fast' \({setting}\); "
    with pytest.raises(SpecError, match=words + "queues that may: gpus, any$"):
        check_label_of_queue("resources.node_label", "fast", LABELLED, "plain", "ann")
    with pytest.raises(
        SpecError, match=words.replace("fast", "quick") + "no other queue that is known to take yours may$"
    ):
        check_label_of_queue("resources.node_label", "quick", LABELLED[:3], "plain", "ann")


def test_a_queue_of_others_is_refused_with_the_queues_that_take_the_user() -> None:
    def queue(name: str, users: str) -> QueueInfo:
        acl = {"queueAcl": [{"accessType": "SUBMIT_APP", "accessControlList": users}]}
        return QueueInfo(name=name, path=f"root.{name}", state="RUNNING", leaf=True, raw={"queueAcls": acl})

    queues = [queue("locked", "bob "), queue("default", "*"), queue("hers", "bob,ann"), queue("his", "bob")]
    text = "org.apache.hadoop.security.AccessControlException: User ann does not have permission to submit x to locked"
    message = "application.queue: ann may not submit to 'locked' (yarn.scheduler.capacity.root.locked.acl_submit_"
    error = refusal(text, ApplicationId(1, 1), "locked", "ann", lambda: queues)
    assert isinstance(error, Denied)
    assert str(error) == f"{message}applications); queues that take applications of ann: default, hers"
    with pytest.raises(SpecError, match=r"there are default, hers$"):
        check_queue(queues, "nowhere", "ann")

    with pytest.raises(SpecError, match=r"there are locked, his$"):
        check_queue([queues[0], queues[3]], "nowhere", "ann")  # they may name a group of hers

    def away() -> list[QueueInfo]:
        raise Unreachable("no ResourceManager")

    assert str(refusal(text, ApplicationId(1, 1), "locked", "ann", away)) == f"{message}applications)"


def test_a_full_queue_is_no_error_of_the_file_and_offers_only_queues_that_are_not_full() -> None:
    queues = [
        QueueInfo(
            name=name,
            path=f"root.{name}",
            state=state,
            leaf=True,
            raw={"maxApplications": 2, "numApplications": running},
        )
        for name, state, running in (("full", "RUNNING", 2), ("busy", "RUNNING", 3), ("default", "RUNNING", 1))
    ]
    with pytest.raises(Denied) as refused:
        check_queue(queues, "full", "ann")
    assert str(refused.value).endswith("submit again later, or to another queue that takes yours: default")
    with pytest.raises(Denied, match=r"submit again later$"):
        check_queue(queues[:2], "full", "ann")
    check_queue(queues, "default", "ann")


@pytest.mark.parametrize(
    ("memory_mib", "settings", "message"),
    [
        (1000, {"minimum": "1024"}, "1024 MiB (yarn.scheduler.minimum-allocation-mb)"),
        (2049, {"minimum": "1024"}, "3072 MiB (yarn.scheduler.minimum-allocation-mb)"),
        (2048, {"minimum": "1024"}, ""),
        (100, {}, ""),
        (100, {"minimum": "0"}, ""),
        (1500, {"minimum": "512", "scheduler": "Fair"}, "2048 MiB (yarn.scheduler.increment-allocation-mb)"),
        (
            *(1500, {"minimum": "512", "scheduler": "Fair", "increment": "1000"}),
            "2000 MiB (yarn.resource-types.memory-mb.increment-allocation)",
        ),
        (100, {"minimum": "512", "scheduler": "Fair", "increment": "100"}, "512 MiB"),
    ],
)
def test_memory_rounded_up_by_yarn_is_reported(memory_mib: int, settings: dict[str, str], message: str) -> None:
    names = {
        "yarn.scheduler.minimum-allocation-mb": settings.get("minimum"),
        "yarn.resourcemanager.scheduler.class": f"x.{settings.get('scheduler', 'Capacity')}Scheduler",
        "yarn.resource-types.memory-mb.increment-allocation": settings.get("increment"),
    }
    lines = check_memory(Resources(memory_mib=memory_mib), names.get)
    assert len(lines) == bool(message)
    assert all(f"memory {memory_mib} MiB of each container is raised to {message}" in line for line in lines)


def test_input_unreadable_on_the_nodes_is_refused_with_a_hint_for_the_operator() -> None:
    inputs = (
        InputSpec(sources=("hdfs://nn/a", "http://host/b"), input_path="x"),
        InputSpec(name="more", sources=("file:///c", "S3://bucket/d"), input_path="y"),
    )
    tried: list[list[str]] = []

    def missing(schemes: Sequence[str]) -> dict[str, str]:
        tried.append(list(schemes))
        return {"s3": "Install s3fs to access S3"}

    with pytest.raises(SpecError) as refused:
        check_schemes(inputs, (), missing)
    assert refused.value.field == "from_hdfs more.hdfs"
    assert refused.value.problem == (
        "the nodes cannot read s3://, as dlapp does not bring the library for it to them (Install s3fs to access S3). "
        "Ask the operator to install it in the Python of all nodes (yarn.python or yarn.python_archive), and to name "
        "s3 in storage.node_schemes"
    )
    check_schemes((inputs[0],), (), missing)
    check_schemes(inputs, ("s3", "http"), missing)
    assert tried == [["http", "s3"], ["http"]]


@pytest.mark.parametrize(
    ("project", "tags", "problem"),
    [
        ("p" * 93, (), r"application\.project: has 101 characters as a tag of YARN, at most 100"),
        (None, ("t" * 101,), r"application\.tags: has 101 characters as a tag of YARN, at most 100"),
        (None, ("고양이",), r"application\.tags: 고양이 is a tag of YARN, and these have printable ASCII"),
        ("cats", tuple("abcdefghij"), r"application\.tags: YARN has at most 10 tags, with project these are 11"),
    ],
)
def test_a_tag_that_yarn_would_refuse_is_refused_before(
    project: str | None, tags: tuple[str, ...], problem: str
) -> None:
    spec = AppSpec(username="u", appname="a", command=("true",), project=project, tags=tags, roles=(RoleSpec(),))
    with pytest.raises(SpecError, match=problem):
        check_tags(spec, lambda _: None)


def test_tags_within_the_limits_of_this_cluster_pass() -> None:
    tags = ("t" * 100, *"abcdefghi")
    spec = AppSpec(username="u", appname="a", command=("true",), tags=tags, roles=(RoleSpec(),))
    check_tags(spec, lambda _: None)
    more = AppSpec(username="u", appname="a", command=("true",), project="p" * 190, tags=tags, roles=(RoleSpec(),))
    check_tags(more, lambda _: "200")


@pytest.mark.parametrize(
    ("placement", "is_plain", "problem"),
    [
        (Placement(gpu="mig:1g.10gb"), True, "resources.gpu: is mig:1g.10gb, and with yarn.io/gpu YARN assigns whole"),
        (
            Placement(cuda_visible_devices="index"),
            True,
            "resources.cuda_visible_devices: is index, and",
        ),
        (Placement(cuda_visible_devices="index"), False, ""),
        (Placement(gpu_memory_mb=40_000), True, ""),
    ],
)
def test_a_device_choice_that_the_nodemanager_cannot_make_is_refused(
    placement: Placement, is_plain: bool, problem: str
) -> None:
    check_gpus(placement, "resources", Dialect.GCORES, is_plain=is_plain)
    if not problem:
        check_gpus(placement, "resources", Dialect.YARN_GPU, is_plain=is_plain)
        return
    with pytest.raises(SpecError) as refused:
        check_gpus(placement, "resources", Dialect.YARN_GPU, is_plain=is_plain)
    assert str(refused.value).startswith(problem)
