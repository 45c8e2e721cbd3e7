"""Facts about waiting applications, read from the ResourceManager: its queues, nodes, and the applications in a queue.

Queues and nodes are read once for all applications that a command shows. Data that the ResourceManager does not report,
or reports in an unknown form, is a missing fact, from which no reason is derived.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dlapp.cluster.engine import PlanFacts, QueueFacts, UserShare
from dlapp.cluster.reasons.change import smallest_change
from dlapp.cluster.reasons.estimate import Job, StartEstimator
from dlapp.cluster.reasons.facts import GCORES, MASTER, MEMORY, NAMES, VCORES, LimitFacts, NodeFacts, WaitFacts, asks_of
from dlapp.cluster.reasons.tiers import choose, fitting_nodes, never_fits
from dlapp.cluster.yarn.client.preflight import may_submit, memory_steps, with_those_above
from dlapp.cluster.yarn.client.rest import AppReport, NodeInfo, QueueInfo, amounts, as_list, as_object
from dlapp.cluster.yarn.client.session import ClusterSession
from dlapp.cluster.yarn.client.views import first_line, waiting_line
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.errors import DlappError, RequestTooLarge
from dlapp.system.text import counted, shown
from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.report import ApplicationView, State
from dlapp.values.spec import AppSpec
from dlapp.values.start_conditions import plan_texts
from dlapp.values.waiting import QUEUE_LIMIT, STARTING, USER_LIMIT, Ahead, Estimate, PendingRequest, Waiting

HISTORY_MS = 14 * 86_400_000
"""Applications that ended longer ago are not used for estimates."""
MAX_FACTOR = 1_000_000
"""A larger factor counts as no limit for a user; -1 turns the limit off."""
_CAPACITY = "yarn.scheduler.capacity"
NODES_RETURN_MS = 600_000
"""How long after its start a ResourceManager may lack nodes that were there before: as long as it waits for a silent
one (yarn.nm.liveness-monitor.expiry-interval-ms). NodeManagers try to reach it every 30 s."""
_RUNNING = ("RUNNING", "DECOMMISSIONING")
_REMOVED = "DECOMMISSIONED"
_AM_REQUEST = re.compile(r"AM Resource Request = <memory:(\d{1,12}), vCores:(\d{1,9})")
_AM_LIMIT = "AM resource limit exceeded"
"""Source: CSAMContainerLaunchDiagnosticsConstants, 2.8 to 3.5."""
_ON_THE_WAY = "AM container is launched", "Scheduler has assigned a container for AM"
"""Source: SchedulerApplicationAttempt.AMState, 2.8 to 3.5."""
_REGISTERING = "its ApplicationMaster has a container, and has yet to register with the ResourceManager"
WAITING_STATES = (State.NEW, State.NEW_SAVING, State.SUBMITTED, State.ACCEPTED)
OF_CLUSTER = "of the cluster, now"


class ClusterFacts:
    """Queues and nodes as reported by the ResourceManager, each read on first use.

    Args:
        session: the connections.
        of_others: also read the applications in a queue.
    """

    def __init__(self, session: ClusterSession, *, of_others: bool = True) -> None:
        self._session, self._of_others = session, of_others
        self._read = False
        self._queues: Sequence[QueueInfo] = ()
        self._nodes: tuple[NodeFacts, ...] | None = None
        self._unread = ""
        self._in_queue: dict[str, list[AppReport]] = {}

    def explained(self, report: AppReport, view: ApplicationView) -> ApplicationView:
        """Return a view with the reason for its wait, if it waits."""
        if (facts := self.facts(report, view)) is None:
            return view
        return _with(view, report, choose(facts))

    def facts(self, report: AppReport, view: ApplicationView) -> WaitFacts | None:
        """Return the facts about a waiting application; None: it waits for nothing from YARN, or that is not known.

        One that runs without a tracking URL has yet to register with a new ResourceManager, which knows neither what it
        asks for nor all nodes; its view may be older than that.
        """
        if report.state.ended or (report.state is State.RUNNING and not (view.lacking and report.tracking_url)):
            return None
        if report.state is State.RUNNING:
            asks, own, starting = view.lacking, view.waiting, _asked_text(view.lacking)
            since_ms = min((one.since_ms for one in asks if one.since_ms is not None), default=None)
        else:
            text = first_line(report.diagnostics)
            if report.am_attempt and not text.startswith(_ON_THE_WAY):
                text = _REGISTERING
            is_coming = report.state is not State.ACCEPTED or bool(report.am_attempt) or text.startswith(_ON_THE_WAY)
            asks = () if is_coming else (self._master(report),)
            own, starting = None, text or "YARN is taking it"
            since_ms = report.started_ms or None
        if asks and report.state is State.ACCEPTED and self._of_others:
            # 1. We read the report: it waits for its ApplicationMaster's container.
            # 2. YARN grants it, and counts it in the queue.
            # 3. We read the queue, which now has no room for a container that it already has.
            self._read_cluster()
            now = self._session.rest().report(report.application_id)
            text = first_line(now.diagnostics)
            if now.state is not State.ACCEPTED or now.am_attempt or text.startswith(_ON_THE_WAY):
                asks, starting = (), text or starting
        has_containers = report.state is State.RUNNING and bool(view.containers)
        facts = self._of(asks, report.queue, report.user, view.usable_gpus, exclude=str(report.application_id))
        own_reserved = _reserved_amounts(report)
        of_all = sum(_count(one.raw.get("reservedContainers")) for one in self._queues if one.leaf)
        facts = replace(
            facts, limits=_without(facts.limits, own_reserved), reserved=0 if any(own_reserved.values()) else of_all
        )
        host = report.am_node.rpartition(":")[0] if report.state is State.RUNNING else ""
        is_over = _AM_LIMIT in report.diagnostics and report.state is not State.RUNNING
        return replace(
            facts,
            am_limit=f"{waiting_line(report)}{self._am_setting(report.queue)}" if is_over else "",
            own=own,
            since_ms=since_ms,
            starting=starting,
            has_containers=has_containers,
            master=_amounts_of_master(report, view, self._session.config.yarn.am_memory_mib) if host else {},
            master_host=host,
            master_label=self._session.config.yarn.am_node_label or "",
        )

    def _am_setting(self, queue: str) -> str:
        """Return the setting that limits the ApplicationMasters of a queue, in parentheses; empty: its path is not
        known."""
        found = next((one for one in self._queues if queue in (one.path, one.name)), None)
        return f" ({_CAPACITY}.{found.path}.maximum-am-resource-percent)" if found is not None else ""

    def _of(
        self, asks: Sequence[PendingRequest], queue: str, user: str, usable: Mapping[str, int], *, exclude: str = ""
    ) -> WaitFacts:
        """Return the facts about requests of a user in a queue, given by its name or path.

        Args:
            usable: hosts on which not all GPUs may be leased -> number of those that may.
            exclude: the application itself, which is not ahead of itself.
        """
        if asks:
            self._read_cluster()
        nodes = self._nodes
        if nodes is not None and usable:
            nodes = tuple(replace(one, usable_gpus=usable.get(one.host)) for one in nodes)
        whole = _whole(nodes)
        limits = limits_of(self._queues, queue, user, whole)
        name = queue.rpartition(".")[2]
        leaves = [one for one in self._queues if one.leaf and one.state == "RUNNING" and one.name != name]
        leaves = [one for one in leaves if may_submit(self._queues, one, user)]
        return WaitFacts(
            asks=tuple(asks),
            nodes=nodes,
            limits=limits,
            unread=self._unread,
            holders=self._holders(name, exclude) if asks else (),
            other_queues=tuple((one.name, limits_of(self._queues, one.path, user, whole)) for one in leaves),
        )

    def in_full(self, report: AppReport, view: ApplicationView, now_ms: int) -> ApplicationView:
        """Return a view with the reason, the smallest change that removes it, and an estimated start."""
        if (facts := self.facts(report, view)) is None:
            return view
        waiting = choose(facts)
        if waiting.code != STARTING:
            waiting = replace(waiting, change=smallest_change(self._with_steps(facts)))
        if report.state is not State.RUNNING:
            estimate = self._estimate(report.queue, report.started_ms, now_ms, exclude=report)
            waiting = replace(waiting, estimate=estimate)
        return _with(view, report, waiting)

    def plan(self, spec: AppSpec, now_ms: int, ends: Mapping[str, str]) -> PlanFacts:
        """Return the facts about an application that might be submitted now.

        Args:
            now_ms: the time [ms since 1970].
            ends: how applications that it waits for have ended, as far as they have.
        """
        queue, master = spec.queue or "default", self._new_master()
        facts = self._of(asks_of(spec), queue, spec.username, {})
        dependency, held = plan_texts(spec.after, ends, is_held=spec.hold)
        largest = _own_amounts(self._session.largest(), self._session.dialect())
        of_master = {MEMORY: master.memory_mib, VCORES: master.vcores}
        facts = replace(facts, largest=largest, dependency=dependency, held=held, master=of_master)
        facts = replace(facts, master_label=master.node_label)
        waiting = choose(facts)
        if waiting.code == STARTING:
            first = choose(replace(facts, asks=(master,)))
            waiting = first if first.code != STARTING else replace(waiting, message="it would start now")
        return PlanFacts(
            facts=facts,
            waiting=replace(waiting, change=smallest_change(self._with_steps(facts)), since_ms=None),
            estimate=self._estimate(queue, now_ms, now_ms),
            nodes={one.role: tuple(node.host for node in fitting_nodes(facts, one)) for one in facts.asks},
        )

    def _with_steps(self, facts: WaitFacts) -> WaitFacts:
        """Return the facts with the scheduler's memory allocation step, for computing a change."""
        with contextlib.suppress(DlappError):
            return replace(facts, memory_step=memory_steps(self._session.rest().configuration)[1])
        return facts

    def _estimate(self, queue: str, submitted_ms: int, now_ms: int, *, exclude: AppReport | None = None) -> Estimate:
        """Return the estimated start of a waiting application in a queue; without a range if it cannot be estimated.
        ``exclude`` is its own report; None: it is not submitted."""
        own = None if exclude is None else exclude.application_id
        try:
            others = [known for one, known in self._jobs(queue, now_ms).items() if one != own]
        except DlappError:
            return Estimate()
        return StartEstimator(others, now_ms).estimate(Job(submitted_ms, None, None, 0))

    def of_queues(self, waiting: Sequence[AppReport], now_ms: int) -> QueueFacts:
        """Return the facts about all applications that wait for their ApplicationMaster, by queue."""
        self._read_cluster()
        order = sorted(waiting, key=lambda one: (one.queue, -(one.priority or 0), one.application_id))
        estimates: dict[str, Estimate] = {}
        for queue in dict.fromkeys(one.queue for one in order):
            try:
                jobs = self._jobs(queue, now_ms)
            except DlappError:
                continue  # their start times are not known
            own = {one.application_id: Job(one.started_ms, None, None, 0) for one in order if one.queue == queue}
            estimator = StartEstimator([*(jobs | own).values()], now_ms)
            estimates |= {str(one): estimator.estimate(job) for one, job in own.items()}
        return QueueFacts(
            order=tuple(str(one.application_id) for one in order), estimates=estimates, shares=self._shares()
        )

    def _jobs(self, queue: str, now_ms: int) -> dict[ApplicationId, Job]:
        """Return the latest applications of a queue. Raises DlappError.

        They wait for the container of their ApplicationMaster, which is small in each; what else they use is no part of
        a `Job`.
        """
        name, rest = queue.rpartition(".")[2], self._session.rest()
        known = [*rest.in_queue(name, ended_since_ms=now_ms - HISTORY_MS), *rest.in_queue(name)]
        jobs = {}
        for one in known:
            launched_ms = _count(one.raw.get("launchTime")) or None
            jobs[one.application_id] = Job(one.started_ms, launched_ms, one.finished_ms or None, 0)
        return jobs

    def _shares(self) -> tuple[UserShare, ...]:
        """Return the current usage of each user of a queue."""
        whole, found = _whole(self._nodes), []
        for queue in self._queues:
            for one in _users(queue.raw) if queue.leaf and whole else ():
                used = _own_amounts(amounts(as_object(one.get("resourcesUsed"))))
                share = max((used.get(name, 0) / there for name, there in whole.items() if there), default=0.0)
                if share > 0:
                    user = str(one.get("username"))[:100]
                    found.append(UserShare(user=user, queue=queue.name, share=min(1.0, share), meaning=OF_CLUSTER))
        return tuple(sorted(found, key=lambda one: (one.queue, -one.share, one.user)))

    def _read_cluster(self) -> None:
        if self._read:
            return
        self._read = True
        rest = self._session.rest()
        try:
            dialect = self._session.dialect()
            self._queues = rest.queues()
            self._nodes = tuple(node_facts(one, dialect) for one in rest.nodes(running=True))
        except DlappError as error:
            self._unread = shown(str(error), 200)

    def _holders(self, queue: str, exclude: str) -> tuple[Ahead, ...]:
        if not self._of_others:
            return ()
        if queue not in self._in_queue:
            try:
                self._in_queue[queue] = self._session.rest().in_queue(queue)
            except DlappError:
                self._in_queue[queue] = []  # the applications ahead are unknown; the reason is known
        found = self._in_queue[queue]
        before = [one for one in found if str(one.application_id) != exclude]
        running = [one for one in before if one.state is State.RUNNING]
        waiting = [one for one in before if one.state is not State.RUNNING and str(one.application_id) < exclude]
        return tuple(
            Ahead(id=str(one.application_id), user=one.user, amounts=_used_amounts(one)) for one in [*running, *waiting]
        )

    def _master(self, report: AppReport) -> PendingRequest:
        """Return the request for the container of the ApplicationMaster."""
        asked = _AM_REQUEST.search(report.diagnostics)
        memory_mib = int(asked[1]) if asked else self._session.config.yarn.am_memory_mib
        label = str(report.raw.get("amNodeLabelExpression") or "")
        return master_ask(memory_mib, "" if label.startswith("<") else label)  # <Not set>, <DEFAULT_PARTITION>

    def _new_master(self) -> PendingRequest:
        """Return the request for the container of the ApplicationMaster of a new application."""
        config = self._session.config.yarn
        return master_ask(config.am_memory_mib, config.am_node_label or "")


def master_ask(memory_mib: int, label: str) -> PendingRequest:
    """Return the container of an ApplicationMaster."""
    return PendingRequest(role=MASTER, count=1, memory_mib=memory_mib, vcores=1, node_label=label, together=True)


def _amounts_of_master(report: AppReport, view: ApplicationView, memory_mib: int) -> dict[str, int]:
    """Return the amounts of the ApplicationMaster of a running application, for which we request this memory."""
    asked = {MEMORY: memory_mib, VCORES: 1}
    # YARN may have rounded that up; once there are containers, the used amount includes them.
    return asked if view.containers else asked | _used_amounts(report)


def check_limits(
    spec: AppSpec, queues: Sequence[QueueInfo], nodes: Sequence[NodeInfo], dialect: Dialect, master: PendingRequest
) -> None:
    """Reject a request that exceeds a limit of the queue or the user, however much is free.

    Args:
        spec: the application.
        queues: the queues of the scheduler.
        nodes: those that run.
        dialect: representation of GPUs in this cluster.
        master: container of its ApplicationMaster.

    Raises:
        RequestTooLarge: names the limit and its setting.
    """
    whole = _whole([node_facts(one, dialect) for one in nodes])
    limits = limits_of(queues, spec.queue or "default", spec.username, whole)
    asks = asks_of(spec)
    if any(one.together for one in asks):
        asks = (*asks, master)
    if (never := never_fits(WaitFacts(asks=asks, limits=limits))) is not None:
        raise RequestTooLarge(never.message, "application.queue")


def limit_lines(spec: AppSpec, queues: Sequence[QueueInfo], session: ClusterSession, now_ms: int) -> list[str]:
    """Check a request by `check_limits`, also while nodes are away that will be back.

    YARN counts the capacity of a queue by the nodes that run. So shortly after the start of a ResourceManager, or while
    nodes are lost or restart, a queue is smaller than it will be. Then nothing is refused.

    Args:
        spec: the application.
        queues: the queues of the scheduler now.
        session: the connection to the cluster; its list of nodes may be some minutes old.
        now_ms: the time [ms since 1970].

    Returns:
        A line for the user if the request does not fit the nodes that run now.

    Raises:
        RequestTooLarge: it never fits.
    """
    dialect, config = session.dialect(), session.config.yarn
    master = master_ask(config.am_memory_mib, config.am_node_label or "")
    with contextlib.suppress(RequestTooLarge):
        check_limits(spec, queues, session.nodes(), dialect, master)
        return []
    rest = session.rest()
    nodes = rest.nodes()
    running = [one for one in nodes if one.state in _RUNNING]
    try:
        check_limits(spec, rest.queues(), running, dialect, master)
    except RequestTooLarge as error:
        away = sum(one.state not in (*_RUNNING, _REMOVED) for one in nodes)
        started_ms = rest.info().get("startedOn")
        is_new = isinstance(started_ms, int) and now_ms - started_ms < NODES_RETURN_MS
        if not away and not is_new:
            raise
        why = f"the cluster lacks {counted(away, 'nodes')}" if away else "the ResourceManager has just started"
        return [f"{error}; it waits, because {why} and the queue may be larger later"]
    return []


def node_facts(node: NodeInfo, dialect: Dialect) -> NodeFacts:
    """Return the relevant fields of a node."""
    return NodeFacts(
        host=node.host,
        total=_own_amounts(node.total, dialect),
        free=_own_amounts(node.free, dialect),
        labels=node.labels,
    )


def limits_of(queues: Sequence[QueueInfo], queue: str, user: str, whole: Mapping[str, int]) -> tuple[LimitFacts, ...]:
    """Return the known limits of a queue, of its parent queues, and of a user in it.

    Args:
        queues: the queues of the scheduler.
        queue: its name or path.
        user: a Hadoop user.
        whole: the cluster's resources.
    """
    leaf = next((one for one in queues if queue in (one.path, one.name)), None)
    if leaf is None or not whole:
        return ()
    above = with_those_above(queues, leaf)
    limits = []
    for one in above if len(above) > 1 else [leaf]:
        if one.path == "root":
            continue  # its limit is the cluster
        if (most := _capacity(one, "Max", whole)) and most != whole:
            limits.append(
                LimitFacts(
                    code=QUEUE_LIMIT,
                    name=f"queue {one.name}",
                    setting=f"{_CAPACITY}.{one.path}.maximum-capacity",
                    most=most,
                    used=_own_amounts(amounts(as_object(one.raw.get("resourcesUsed")))),
                    whole=whole,
                )
            )
    if (of_user := _user_limit(leaf, user, whole)) is not None:
        limits.append(of_user)
    return tuple(limits)


def _user_limit(queue: QueueInfo, user: str, whole: Mapping[str, int]) -> LimitFacts | None:
    found = next((one for one in _users(queue.raw) if one.get("username") == user), {})
    factor = queue.raw.get("userLimitFactor")
    if not isinstance(factor, (int, float)) or not 0 <= factor <= MAX_FACTOR:
        return None
    least, limit = _capacity(queue, "Min", whole), _capacity(queue, "Max", whole)
    ever = {name: min(limit.get(name, amount), int(amount * factor)) for name, amount in least.items()}
    # It is that of the partition that was computed last. Seen: Hadoop 3.4.2.
    now = {} if len(_partitions(queue)) > 1 else _own_amounts(amounts(as_object(found.get("userResourceLimit"))))
    most = now or ever
    if not most or most == whole:
        return None
    used = _own_amounts(amounts(as_object(found.get("resourcesUsed")))) or dict.fromkeys(most, 0)
    return LimitFacts(
        code=USER_LIMIT,
        name=f"{user} in queue {queue.name}",
        setting=f"{_CAPACITY}.{queue.path}.user-limit-factor",
        most=most,
        ever=ever,
        used=used,
        is_soft=True,
        whole=whole,
    )


def _partitions(queue: QueueInfo) -> list[dict[str, Any]]:
    """Return the partitions (one per node label and one without) in which a queue has a capacity."""
    return as_list(as_object(queue.raw.get("capacities")).get("queueCapacitiesByPartition"))


def _users(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    return as_list(as_object(raw.get("users")).get("user"))


def _capacity(queue: QueueInfo, which: str, whole: Mapping[str, int]) -> dict[str, int]:
    """Return the minimum or maximum (``Min``, ``Max``) of a queue on the nodes without a label; empty: not known.

    Hadoop 2 reports only the share of the whole.
    """
    for one in _partitions(queue):
        found = _own_amounts(amounts(as_object(one.get(f"effective{which}Resource"))))
        if found and not one.get("partitionName"):
            return found
    share = queue.raw.get("absoluteMaxCapacity" if which == "Max" else "absoluteCapacity")
    if not isinstance(share, (int, float)) or not 0 <= share <= 100:
        return {}
    return {name: int(amount * share / 100) for name, amount in whole.items()}


def _whole(nodes: Sequence[NodeFacts] | None) -> dict[str, int]:
    """Return the sum of all nodes without a label."""
    plain = [one for one in nodes or () if not one.labels]
    counted = [name for name in NAMES if plain and all(name in one.total for one in plain)]
    return {name: sum(one.total[name] for one in plain) for name in counted}


def _used_amounts(report: AppReport) -> dict[str, int]:
    """Return the current or (after its end) average usage of an application; empty if the caller may not see it."""
    raw = report.raw
    used: dict[str, int] = {}
    for one in as_list(as_object(raw.get("resourceInfo")).get("resourceUsagesByPartition")):
        for name, amount in _own_amounts(amounts(as_object(one.get("used")))).items():
            used[name] = used.get(name, 0) + amount
    if not any(used.values()):
        used = {MEMORY: _count(raw.get("allocatedMB")), VCORES: _count(raw.get("allocatedVCores"))}
    if report.state.ended:
        seconds = max(1.0, (report.finished_ms - (_count(raw.get("launchTime")) or report.started_ms)) / 1000)
        used = {MEMORY: _count(raw.get("memorySeconds")), VCORES: _count(raw.get("vcoreSeconds"))}
        for one in as_list(as_object(raw.get("resourceSecondsMap")).get("entry")):
            if one.get("key") in (Dialect.GCORES.value, Dialect.YARN_GPU.value):
                used[GCORES] = _count(one.get("value"))
        used = {name: int(amount / seconds) for name, amount in used.items()}
    return {name: amount for name, amount in used.items() if amount > 0}


def _reserved_amounts(report: AppReport) -> dict[str, int]:
    """Return what YARN keeps for an application on nodes that have not enough free for its container.

    YARN counts it as used in the queue and by the user, and keeps it for a container that is still asked for.
    """
    raw, reserved = report.raw, dict[str, int]()
    for one in as_list(as_object(raw.get("resourceInfo")).get("resourceUsagesByPartition")):
        if not one.get("partitionName"):
            reserved = _own_amounts(amounts(as_object(one.get("reserved"))))
    return reserved or {MEMORY: _count(raw.get("reservedMB")), VCORES: _count(raw.get("reservedVCores"))}


def _without(limits: Sequence[LimitFacts], reserved: Mapping[str, int]) -> tuple[LimitFacts, ...]:
    """Return limits of which less is used."""
    return tuple(
        replace(one, used={name: max(0, amount - reserved.get(name, 0)) for name, amount in one.used.items()})
        for one in limits
    )


def _own_amounts(found: Mapping[str, int], dialect: Dialect | None = None) -> dict[str, int]:
    """Return amounts by dlapp's resource names."""
    names = {"memory-mb": MEMORY, "vcores": VCORES, Dialect.GCORES.value: GCORES, Dialect.YARN_GPU.value: GCORES}
    ours = {names[name]: amount for name, amount in found.items() if name in names}
    if dialect is Dialect.NONE:
        ours.pop(GCORES, None)
    return ours


def _with(view: ApplicationView, report: AppReport, waiting: Waiting) -> ApplicationView:
    """Return a view with its reason; before an ApplicationMaster runs, the reason is also its diagnostics."""
    if report.state is State.RUNNING:
        return replace(view, waiting=waiting)
    return replace(view, waiting=waiting, diagnostics=waiting.message)


def _asked_text(asks: Sequence[PendingRequest]) -> str:
    count = sum(one.count for one in asks)
    return f"waiting for {count} container{'' if count == 1 else 's'}, for which there is room"


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
