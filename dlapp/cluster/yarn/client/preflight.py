"""Checks before a submission: limits, queue, and whether the user's home directory is writable.

Each error names the setting of the limit, because the user has to ask the operator to change it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from dlapp.cluster.yarn.client.rest import NodeInfo, QueueInfo, as_list, as_object
from dlapp.cluster.yarn.dialect import FIELD3_LIMIT, FIELD3_MINIMUM, FIELD3_NODE, SETTING, Dialect
from dlapp.cluster.yarn.staging import CACHE_MODE, StagingFiles, StagingPaths
from dlapp.errors import (
    Denied,
    DlappError,
    NotFound,
    Refuse,
    RequestTooLarge,
    SpecError,
    Unreachable,
    UsageError,
    raise_error,
)
from dlapp.locations import FileInfo, remote_scheme
from dlapp.system.text import counted, nearest, shown
from dlapp.values.ids import ApplicationId
from dlapp.values.spec import BY_INDEX, InputSpec, Placement, Resources

_MAXIMUM: Mapping[str, str] = {
    "memory-mb": "yarn.scheduler.maximum-allocation-mb",
    "vcores": "yarn.scheduler.maximum-allocation-vcores",
}
NODE_LABELS = "yarn.node-labels.enabled"
MEMORY_MINIMUM = "yarn.scheduler.minimum-allocation-mb"
_JAVA_CLASS = re.compile(r"^(?:[a-z]\w*\.)+[A-Z]\w*: ")
_NOT_RUNNING = re.compile(r"Queue (\S+) is ([A-Z]+)\b")
_FULL = re.compile(r"Queue (\S+) already has (\d+) applications")
"""Messages of LeafQueue.validateSubmitApplication, 3.4.2."""
_CAPACITY = "yarn.scheduler.capacity"
HDFS_SETTINGS = "dfs.namenode.rpc-address, dfs.namenode.http-address and dfs.http.policy"

Configuration = Callable[[str], str | None]
"""Function that returns a property of the ResourceManager; None: it is not set."""


def amounts(resources: Resources, dialect: Dialect) -> dict[str, int]:
    """Return the amounts of a container by the ResourceManager's resource names."""
    found = {"memory-mb": resources.memory_mib, "vcores": resources.vcores}
    if dialect in (Dialect.GCORES, Dialect.YARN_GPU) and resources.gcores:
        found[dialect.value] = resources.gcores
    return found


def check_limits(
    resources: Resources,
    dialect: Dialect,
    largest: Mapping[str, int],
    configuration: Configuration,
    refuse: Refuse = raise_error,
) -> list[str]:
    """Reject a container that the cluster never grants.

    Args:
        resources: amounts of the container.
        dialect: representation of GPUs in this cluster.
        largest: maximum of each amount in one container: the configured one, or the largest node's, if less.
        configuration: local Hadoop configuration, to name the setting of a limit.
        refuse: called with each error; by default it raises the first.

    Returns:
        Lines for the user.

    Raises:
        RequestTooLarge: names the setting of the limit.
    """
    for name, amount in amounts(resources, dialect).items():
        if name in largest and amount > largest[name]:
            setting = _MAXIMUM.get(name, f"yarn.resource-types.{name}.maximum-allocation")
            problem = f"asked for {amount} {name} in one container, the maximum of the cluster is {largest[name]} "
            refuse(RequestTooLarge(f"{problem}({setting}, or its largest node)"))
    if resources.gcores and dialect is Dialect.NONE:
        requested = counted(resources.gcores, "gcores")
        problem = f"asked for {requested}, and the cluster counts no GPUs ({SETTING}: none)"
        refuse(RequestTooLarge(problem, "resources.gcores"))
    return _field3(resources.gcores, configuration) if dialect is Dialect.FIELD3 else []


def check_am_memory(memory_mib: int, largest: Mapping[str, int]) -> None:
    """Reject an ApplicationMaster that the cluster never grants.

    Args:
        memory_mib: `yarn.am_memory`.
        largest: as for `check_limits`.

    Raises:
        RequestTooLarge: names the settings.
    """
    most_mib = largest.get("memory-mb")
    if most_mib is not None and memory_mib > most_mib:
        raise RequestTooLarge(
            f"yarn.am_memory: an ApplicationMaster asks for {memory_mib} MiB, the maximum of the cluster is {most_mib} "
            f"({_MAXIMUM['memory-mb']}, or its largest node)"
        )


def check_gpus(placement: Placement, section: str, dialect: Dialect, *, is_plain: bool) -> None:
    """Reject a choice of GPUs that a NodeManager with yarn.io/gpu does not make.

    Args:
        placement: has the choice.
        section: section of the properties file, for messages.
        dialect: representation of GPUs in this cluster.
        is_plain: the program runs without Docker.

    Raises:
        SpecError: the cluster has whole GPUs only, or CUDA's indexes are not known.
    """
    if dialect is not Dialect.YARN_GPU:
        return
    if placement.has_slices:
        raise SpecError(f"{section}.gpu", f"is {placement.gpu}, and with yarn.io/gpu YARN assigns whole GPUs only")
    if is_plain and placement.cuda_visible_devices == BY_INDEX:
        text = "is index, and with yarn.io/gpu a container may see its GPUs under other indexes: use uuid, or Docker"
        raise SpecError(f"{section}.cuda_visible_devices", text)


def _field3(gcores: int, configuration: Configuration) -> list[str]:
    """Return the three settings of the patched Hadoop, which no other request shows."""
    least, most, node = (_count(configuration(name)) for name in (FIELD3_MINIMUM, FIELD3_LIMIT, FIELD3_NODE))
    if most is not None and gcores > most:
        requested = counted(gcores, "gcores")
        problem = f"asked for {requested} in one container, the maximum is {most} ({FIELD3_LIMIT})"
        raise RequestTooLarge(problem, "resources.gcores")
    if least is not None and gcores < least:
        return [f"{gcores} gcores are raised to {least}, the least that a container gets ({FIELD3_MINIMUM})"]
    if node and gcores > node:
        # It is the ResourceManager's copy of a NodeManager setting: some nodes may have more.
        return [f"a node has {node} gcores ({FIELD3_NODE}); a container of {gcores} waits for one that has more"]
    return []


def check_memory(resources: Resources, configuration: Configuration) -> list[str]:
    """Return a line if YARN gives a container more memory than requested."""
    granted_mib, step, setting = memory_steps(configuration)
    if step:
        granted_mib = max(granted_mib, -(-resources.memory_mib // step) * step)
    if granted_mib <= resources.memory_mib:
        return []
    return [f"memory {resources.memory_mib} MiB of each container is raised to {granted_mib} MiB ({setting})"]


def memory_steps(configuration: Configuration) -> tuple[int, int, str]:
    """Return a container's minimum memory [MiB], the step of its memory [MiB], and the setting for these; 0: not known.

    Source: CapacityScheduler rounds up to multiples of the minimum; FairScheduler to multiples of an increment.
    """
    least, setting = _count(configuration(MEMORY_MINIMUM)) or 0, MEMORY_MINIMUM
    step = least
    if (configuration("yarn.resourcemanager.scheduler.class") or "").endswith(".FairScheduler"):
        names = ("yarn.resource-types.memory-mb.increment-allocation", "yarn.scheduler.increment-allocation-mb")
        found = ((name, _count(configuration(name))) for name in names)
        setting, step = next(((name, count) for name, count in found if count), (names[1], 1024))
    return least, step, setting


def check_nodes(resources: Resources, placement: Placement, dialect: Dialect, nodes: Sequence[NodeInfo]) -> list[str]:
    """Return a line if none of the running nodes that the user allows could hold the container when empty.

    Args:
        resources: amounts of the container.
        placement: nodes that the user allows.
        dialect: representation of GPUs in this cluster.
        nodes: running nodes.
    """
    requested = amounts(resources, dialect)
    allowed = {node.host for node in nodes} - set(placement.exclude_nodes)
    if placement.nodes:
        allowed &= set(placement.nodes)
    fitting = (node for node in nodes if all(node.total.get(name, 0) >= amount for name, amount in requested.items()))
    if any(node.host in allowed for node in fitting):
        return []
    text = ", ".join(f"{amount} {name}" for name, amount in requested.items())
    among = " among those that nodes and exclude_nodes leave" if placement.nodes or placement.exclude_nodes else ""
    return [f"no node that runs now{among} can hold a container of {text}; it waits for one"]


def check_node_names(key: str, names: Sequence[str], nodes: Sequence[NodeInfo]) -> list[str]:
    """Return a line for each name, set by this key, that none of the running nodes has."""
    known = {node.host: None for node in nodes}
    return [
        f"{key}: no node {shown(name)} runs now, {nearest(name, known)}"
        for name in names
        if known and name not in known
    ]


def check_label(key: str, label: str, configuration: Configuration, labels: Callable[[], Collection[str]]) -> None:
    """Reject a node label, set by this key, that the cluster does not have.

    Args:
        key: the key, for messages.
        label: its value.
        configuration: the ResourceManager's configuration.
        labels: returns the cluster's labels; none: not reported.

    Raises:
        SpecError: the cluster has no labels, or not this one.
    """
    if configuration(NODE_LABELS) == "false":
        raise SpecError(key, f"the nodes of this cluster have no labels ({NODE_LABELS} is false)")
    if (known := sorted(labels())) and label not in known:
        raise SpecError(key, f"no nodes have the label {shown(label)}, {nearest(label, dict.fromkeys(known))}")


def check_label_of_queue(key: str, label: str, queues: Sequence[QueueInfo], name: str, user: str) -> None:
    """Reject a node label, set by this key, that applications in a queue may not use.

    Args:
        key: the key, for messages.
        label: its value.
        queues: the queues of the scheduler.
        name: the queue.
        user: the submitter.

    Raises:
        SpecError: the queue has no access to the label.
    """
    found = next((one for one in queues if name in (one.name, one.path)), None)
    # Hadoop leaves the list out for a queue without labels. Some schedulers have none for any queue.
    is_reported = any(one.raw.get("nodeLabels") for one in queues)
    if found is None or not is_reported or _may_use(found, label):
        return
    others = ", ".join(one.name for one in _open(queues, user) if _may_use(one, label))
    setting = f"{_CAPACITY}.{found.path}.accessible-node-labels"
    problem = f"the queue {found.name!r} may not use nodes with the label {shown(label)} ({setting})"
    raise SpecError(
        key,
        f"{problem}; {f'queues that may: {others}' if others else 'no other queue that is known to take yours may'}",
    )


def _may_use(queue: QueueInfo, label: str) -> bool:
    """Return whether a queue has access to a label."""
    labels = queue.raw.get("nodeLabels")
    return isinstance(labels, list) and ("*" in labels or label in labels)


def check_queue(queues: Sequence[QueueInfo], name: str, user: str) -> None:
    """Reject a queue that accepts no applications. Its access list does not decide: it may name the user's group.

    Args:
        queues: empty: the scheduler reports none.
        name: the queue.
        user: the submitter.

    Raises:
        SpecError: the queue does not exist, is not a leaf, or is stopped.
        Denied: it is full.
    """
    if not queues:
        return
    found = [one for one in queues if name in (one.name, one.path)]
    open_ = ", ".join(one.name for one in _open(queues, user))
    if not found:
        raise SpecError("application.queue", f"there is no queue {name!r}; there are {open_}")
    queue = found[0]
    if not queue.leaf:
        raise SpecError("application.queue", f"{name!r} has queues under it, name one of them: {open_}")
    if queue.state != "RUNNING":
        raise SpecError(
            "application.queue",
            f"{name!r} takes no applications, it is {queue.state} ({_CAPACITY}.{queue.path}.state); there are {open_}",
        )
    if _is_full(queue):
        there = counted(int(queue.raw.get("numApplications") or 0), "applications")
        raise Denied(
            f"application.queue: {name!r} is full now: it has {there}, the maximum is "
            f"{queue.raw['maxApplications']} ({_CAPACITY}.{queue.path}.maximum-applications); submit again later"
            + (f", or to another queue that takes yours: {open_}" if open_ else "")
        )


def _open(queues: Sequence[QueueInfo], user: str) -> list[QueueInfo]:
    """Return the queues that accept applications of a user; all that accept any, if none names the user: the access
    lists may name a group of the user."""
    usable = [one for one in queues if one.leaf and one.state == "RUNNING" and not _is_full(one)]
    return [one for one in usable if may_submit(queues, one, user)] or usable


def with_those_above(queues: Sequence[QueueInfo], queue: QueueInfo) -> list[QueueInfo]:
    """Return the queues on the path of a queue, the root first."""
    return [one for one in queues if queue.path == one.path or queue.path.startswith(f"{one.path}.")]


def may_submit(queues: Sequence[QueueInfo], queue: QueueInfo, user: str) -> bool:
    """Return whether a user may submit to a queue, as far as known; group membership is not known.

    Submission rights are inherited by child queues. Source: CapacityScheduler.md, Queue Properties.
    """
    lists = []
    for one in with_those_above(queues, queue):
        for acl in as_list(as_object(one.raw.get("queueAcls")).get("queueAcl")):
            if "SUBMIT" in str(acl.get("accessType")):
                lists.append(str(acl.get("accessControlList")))
    users = [one.split(" ", 1)[0].split(",") for one in lists]
    return not lists or any(one.strip() == "*" for one in lists) or any(user in names for names in users)


def _is_full(queue: QueueInfo) -> bool:
    most = queue.raw.get("maxApplications")
    return isinstance(most, int) and int(queue.raw.get("numApplications") or 0) >= most


def refusal(
    diagnostics: str, application_id: ApplicationId, queue: str, user: str, queues: Callable[[], Sequence[QueueInfo]]
) -> DlappError:
    """Return why YARN rejected a submitted application, in dlapp's own text if there is one.

    A queue may have changed since the check, and some schedulers do not report their queues.

    Args:
        diagnostics: YARN's text.
        application_id: id of the application.
        queue: queue of the application.
        user: the submitter.
        queues: returns the queues of the scheduler.
    """
    text = diagnostics.partition("\n")[0]
    if "does not have permission to submit" in text:
        path = queue if queue.startswith("root") else f"root.{queue}"
        setting = f"{_CAPACITY}.{path}.acl_submit_applications"
        others = ""
        with contextlib.suppress(DlappError):
            others = ", ".join(one.name for one in _open(queues(), user) if queue not in (one.name, one.path))
        instead = f"; queues that take applications of {user}: {others}" if others else ""
        return Denied(f"application.queue: {user} may not submit to {queue!r} ({setting}){instead}")
    if "submitted by user" in text and "to unknown queue" in text:
        return UsageError(f"application.queue: there is no queue {queue!r} ({_CAPACITY}.root.queues)")
    if stopped := _NOT_RUNNING.search(text):
        setting = f"{_CAPACITY}.{stopped[1]}.state"
        return UsageError(f"application.queue: {queue!r} takes no applications, it is {stopped[2]} ({setting})")
    if full := _FULL.search(text):
        setting = f"{_CAPACITY}.{full[1]}.maximum-applications"
        return Denied(
            f"application.queue: {queue!r} is full now: it has {counted(int(full[2]), 'applications')} ({setting})"
        )
    return UsageError(f"YARN refused {application_id}: {_JAVA_CLASS.sub('', text)}")


def carried_schemes(inputs: Sequence[InputSpec], on_nodes: Sequence[str]) -> list[str]:
    """Return the schemes of input whose libraries the bundle must have for the nodes.

    Args:
        on_nodes: schemes whose libraries the nodes have.
    """
    found = {remote_scheme(source).lower() for one in inputs for source in one.sources}
    return sorted(found - {"", *on_nodes})


def check_schemes(
    inputs: Sequence[InputSpec], on_nodes: Sequence[str], missing: Callable[[Sequence[str]], Mapping[str, str]]
) -> None:
    """Reject input that the nodes could not read.

    Args:
        on_nodes: schemes whose libraries the nodes have.
        missing: returns which of some schemes cannot be read with dlapp's archives, with the missing package.

    Raises:
        SpecError: names what the operator can do.
    """
    schemes = carried_schemes(inputs, on_nodes)
    lacking = missing(schemes) if schemes else {}
    for one in inputs:
        for source in one.sources:
            scheme = remote_scheme(source).lower()
            if scheme in lacking:
                raise SpecError(
                    f"from_hdfs {one.name}".strip() + ".hdfs",
                    f"the nodes cannot read {scheme}://, as dlapp does not bring the library for it to them "
                    f"({lacking[scheme]}). Ask the operator to install it in the Python of all nodes (yarn.python or "
                    f"yarn.python_archive), and to name {scheme} in storage.node_schemes",
                )


def check_home(files: StagingFiles, user: str) -> None:
    """Check that the user has a dlapp directory on the file system, which all files need.

    Raises:
        NotFound: the user has no home directory and may not create it.
        Denied: the user may not write there.
        UsageError: it is on several nameservices.
        Unreachable: it is not writable now.
    """
    home = files.home
    try:
        files.check_one_destination(home)
        files.make(StagingPaths(home).directory, CACHE_MODE)
    except Denied as error:
        if files.status(home) is None:
            path = "/" + home.split("/", 3)[3]
            if (other := files.home_by_server()) != path:
                raise NotFound(
                    f"{home} is not there, and the NameNode has the home of {user} at {other}: set "
                    f"dfs.user.home.dir.prefix to {other.rpartition('/')[0] or '/'} in hdfs-site.xml"
                ) from error
            raise NotFound(
                f"{home} is not there: {user} has no home directory; as the superuser of HDFS: "
                f"hdfs dfs -mkdir -p {path} && hdfs dfs -chown {user} {path}"
            ) from error
        raise
    except Unreachable as error:
        if any(mend in str(error) for mend in ("safe mode", "dfs.http.policy", "SSL_CERT_FILE")):
            raise  # its message names the remedy
        raise Unreachable(f"{error}; see {HDFS_SETTINGS}") from error


def check_closed(home: str, found: FileInfo | None) -> None:
    """Reject a home directory in which everybody may replace what runs.

    Args:
        home: location of the directory.
        found: its status; None: it does not exist.

    Raises:
        Denied: everybody may write there.
    """
    if found is not None and found.mode & 0o1002 == 0o002:
        path = "/" + home.split("/", 3)[3]
        raise Denied(
            f"{home} has mode {found.mode:o}, so everybody can replace what is in it: hdfs dfs -chmod o-w {path}"
        )


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdecimal() else None
