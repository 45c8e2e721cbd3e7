"""View of the ApplicationMaster's state, as tools show it.

The view is written a few times a second at most, and may contain ten thousand containers: the view of an unchanged
container is reused.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping

from dlapp.am import causes
from dlapp.am.decisions.assessment import of_end, of_result, ranges
from dlapp.am.decisions.gangs import gang_window
from dlapp.am.decisions.gangs.checkpoints import can_be_resumed, newest_of
from dlapp.am.decisions.start.dependencies import is_met
from dlapp.am.decisions.start.start_gate import closed_text
from dlapp.am.decisions.usage import receipts
from dlapp.am.model.demand import Role
from dlapp.am.model.gate import MAX_RESTARTS, Gate
from dlapp.am.model.instance import Container, Instance, Stage, StopReason
from dlapp.am.model.state import ApplicationState
from dlapp.frameworks.participant import bracketed
from dlapp.system.waits import SHOWN_AFTER_S
from dlapp.value import replace
from dlapp.values.messages import Phase
from dlapp.values.report import (
    TENSORBOARD,
    ApplicationView,
    ContainerView,
    FinalStatus,
    IdleGpus,
    LinkView,
    RestartView,
    State,
)
from dlapp.values.roster import Member
from dlapp.values.spec import Until
from dlapp.values.start_conditions import release_text
from dlapp.values.waiting import (
    DEPENDENCY,
    GANG_PARTIAL,
    HELD,
    SERVICE_AWAY,
    STARTING,
    PendingRequest,
    Waiting,
    first_of,
)

_UNTIL = {Until.STARTED: "", Until.READY: " (ready)", Until.DONE: " (done)"}
MAX_LINKS = 50
"""Maximum number of shown links to services and other pages."""
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,255}", re.ASCII)
SHOWN_MS = int(SHOWN_AFTER_S * 1000)
_ON_THE_WAY = (Phase.STARTING, Phase.PULLING, Phase.UNPACKING, Phase.FETCHING, Phase.LEASING)


def of(state: ApplicationState, tracking_url: str, wait: str = "") -> ApplicationView:
    """Return the view of an application.

    Its ``state`` is RUNNING until the end was reported to the engine: a reader of FINISHED finds all files complete.

    Args:
        wait: what the ApplicationMaster's own process waits for (`dlapp.system.waits`); empty: nothing, or briefly.
    """
    spec = state.spec
    memory_mib, vcores, gcores = spec.total()
    ended = state.stage is Stage.ENDED
    ending = state.ending if ended else None
    return ApplicationView(
        application_id=state.application_id,
        attempt=state.attempt,
        state=State.RUNNING if ending is None else ending.cause.state(by_itself=True),
        final_status=FinalStatus.UNDEFINED if ending is None else ending.final_status,
        cause=None if ending is None else ending.cause,
        phase="" if ended else phase_of(state, wait),
        diagnostics=state.ending.diagnostics if state.ending else "",
        username=spec.username,
        appname=spec.appname,
        submitter=state.submission.submitter,
        queue=spec.queue or "default",
        priority=spec.priority,
        project=spec.project or "",
        tags=spec.tags,
        changes=tuple(state.engine.changes.values()),
        program=spec.program_text,
        source=state.submission.source,
        comment=spec.comment or "",
        network=spec.network or "",
        resumed_from=state.submission.resumed_from,
        again_of=state.submission.again_of,
        submitted_ms=state.submission.submitted_ms,
        started_ms=state.lifetime.started_ms,
        finished_ms=state.lifetime.finished_ms,
        total_containers=len(state.instances),
        memory_mib=memory_mib,
        vcores=vcores,
        gcores=gcores,
        tracking_url=tracking_url,
        soft_kill_by=state.stop.by,
        soft_kill_ends_ms=state.stop.ends_ms,
        trials=None if spec.sweep is None else spec.sweep.trials,
        containers=tuple(_container(one, one.last) for one in state.instances if one.last is not None),
        not_started={
            role.spec.name: role.spec.instances
            for role in state.roles
            if all(state.instances[index].last is None for index in role.indexes)
        },
        resumable=can_be_resumed(state),
        checkpoint=newest_of(state),
        outputs=state.closing.outputs,
        receipt=receipts.total_of(state),
        diagnosis=causes.of_application(state),
        waiting=waiting_of(state, wait),
        lacking=(container_requests := missing_containers(state)),
        usable_gpus=dict(state.nodes.devices.usable) if any(one.gcores for one in container_requests) else {},
        idle=_idle(state),
        restarts=tuple(_restarts(state)),
        links=links_of(state),
        view_acl=str(spec.view_acl),
        modify_acl=str(spec.modify_acl),
    )


def container_of(state: ApplicationState, index: int) -> ContainerView | None:
    """Return the view of the last container of an index; None: none was started, or there is no such index."""
    instance = state.instances[index] if index < len(state.instances) else None
    return None if instance is None or instance.last is None else _container(instance, instance.last)


def links_of(state: ApplicationState) -> tuple[LinkView, ...]:
    """Return the pages of running containers: the ports of services, and the links of the file."""
    found = []
    for role in state.roles:
        if role.spec.service and role.spec.ports:
            for one, member, _ in _serving(state, role):
                if member is not None:
                    url = f"http://{bracketed(member.address)}:{{}}/"
                    found += [
                        _link(one, f"{one.role.name} {one.role_index}", url.format(port)) for port in member.ports
                    ]
    by_name = {role.spec.name: role for role in state.roles}
    for link in state.spec.links:
        role = by_name[link.role]
        for one, member, container in _serving(state, role):
            port = link.port
            if port is None and member is not None:
                port = member.ports[link.place]
            if port is not None and _HOST.fullmatch(container.host):
                # A program for one machine often listens on the loopback interface.
                host = "localhost" if state.engine.single_node else bracketed(container.host)
                name = link.name if role.spec.instances == 1 else f"{link.name} {one.role_index}"
                found.append(_link(one, name, f"http://{host}:{port}{link.path}"))
    return (*_board(state), *found[:MAX_LINKS])


def _board(state: ApplicationState) -> Iterator[LinkView]:
    index = state.spec.board_index
    container = state.instances[index].container if index is not None else None
    if index is None or container is None or container.phase is not Phase.RUNNING or (one := container.board) is None:
        return
    url = f"http://{bracketed(one.address)}:{one.port}{one.path}" if one.port else ""
    if url or one.problem:
        yield LinkView(name=TENSORBOARD, url=url, container=index, secret=True, problem=one.problem)


def _serving(state: ApplicationState, role: Role) -> Iterator[tuple[Instance, Member | None, Container]]:
    """Return the first instances of a role with running payloads, each with its address, if known."""
    count = 0
    for index in role.indexes:
        one = state.instances[index]
        if one.container is not None and one.container.phase is Phase.RUNNING and count < MAX_LINKS:
            count += 1
            place = state.roster.members.get(index)
            yield one, place if state.roster.places.get(index) is one.container else None, one.container


def _link(instance: Instance, name: str, url: str) -> LinkView:
    payload = instance.container.payload if instance.container is not None else None
    is_ready = payload is not None and payload.ready
    ready = is_ready if instance.role.ready or is_ready else None
    return LinkView(name=name, url=url, container=instance.index, ready=ready)


def public_view(view: ApplicationView) -> ApplicationView:
    """Return the view for clients without a token: without the program's arguments, causes of failures, which quote its
    output, names of its files, and URLs that give access to the owner's services."""
    containers = tuple(
        replace(
            one,
            diagnosis=None,
            not_stored=None,
            earlier=tuple(replace(each, diagnosis=None) for each in one.earlier),
        )
        for one in view.containers
    )
    links = tuple(one for one in view.links if not one.secret)
    checkpoint = None if view.checkpoint is None else replace(view.checkpoint, why="")
    return replace(
        view,
        program="",
        source="",
        comment="",
        diagnosis=None,
        containers=containers,
        restarts=(),
        links=links,
        checkpoint=checkpoint,
    )


def _restarts(state: ApplicationState) -> list[RestartView]:
    found = [one for gate in state.gates for one in gate.restarts]
    return sorted(found, key=lambda one: one.at_ms)[-MAX_RESTARTS:]


def _idle(state: ApplicationState) -> IdleGpus | None:
    guard, indexes = state.spec.idle_guard, tuple(one.index for one in state.checks.idle)
    found = [one.container.gpus_idle_ms for one in state.checks.idle if one.container is not None]
    times_ms = [one[0] for one in found if one is not None]
    if guard is None or not times_ms:
        return None
    since_ms = state.now_ms + min(times_ms) - state.awake_ms
    names = f"container{'s' if len(indexes) > 1 else ''} {', '.join(ranges(list(indexes)))}"
    message = f"all GPUs of {names} {guard.limit} since {_time_text(since_ms)} (idle_guard)"
    return IdleGpus(containers=indexes, since_ms=since_ms, message=message)


def phase_of(state: ApplicationState, wait: str = "") -> str:
    """Return a short text on its progress: ``running 3 of 4, waiting for 1 container``; ``wait`` is as in `of`."""
    phase = _phase_of(state)
    # A commit's wait is shown with its own patience, of which this is a part.
    return f"{phase}, {wait}" if wait and not state.waiting_for.startswith("waits") else phase


def _phase_of(state: ApplicationState) -> str:
    match state.stage:
        case Stage.STARTING:
            return f"starting: {state.waiting_for}" if state.waiting_for else "starting"
        case Stage.SETTLING | Stage.LEAVING:
            what = "committing" if state.commits else "ending"
            if state.stage is Stage.LEAVING and (text := _last_ends(state)):
                return f"ending: {text}"
            return f"{what}: {state.waiting_for}" if state.waiting_for else what
        case _:
            pass
    if state.stage is Stage.ACTIVE and (text := closed_text(state)):
        return text
    if (
        state.stage is Stage.ACTIVE
        and state.containers.open
        and all(one.unconfirmed for one in state.containers.open.values())
    ):
        return "restarting"
    counts, obstacles = _counts(state), _obstacles(state)
    total, running = len(state.instances), counts[Phase.RUNNING]
    storing = counts[Phase.STORING] + counts[Phase.RELEASING]
    if state.stage is Stage.CLOSING:
        if text := _kept_text(state):
            return text
        if state.stop.by and running:
            return f"stopping, {running} of {total} still running"
        return f"storing{obstacles.get(Phase.STORING, '')}" if storing else "stopping"
    words = []
    if running:
        words.append(f"running {running} of {total}")
    if storing:
        what = "storing" if storing == total or not running else f"{storing} storing"
        words.append(what + obstacles.get(Phase.STORING, ""))
    announced = Counter(one.announced for one in state.containers.open.values())
    if preempted := announced[StopReason.PREEMPTED]:
        words.append(f"{preempted} preempted")
    if leaving := announced[StopReason.DECOMMISSIONED]:
        words.append(f"{leaving} on nodes that are decommissioned")
    words += _preparing_texts(state, counts, obstacles)
    words += _service_waits(state).values()
    words += _waiting_texts(state, counts)
    words += _dependencies(state)
    if (over := counts[Phase.ENDED]) < total:
        failed = sum(bool(one.failed) for one in state.instances)
        words += [f"{count} {what}" for count, what in ((over - failed, "done"), (failed, "failed")) if count]
    text = ", ".join(words) or "ending"
    if (sweep := state.sweep) is None:
        return text
    ended = len(sweep.trials) - sweep.left
    return f"{ended} of {len(sweep.trials)} trials ended, {sweep.running} running; containers: {text}"


def _preparing_texts(
    state: ApplicationState, counts: Counter[Phase | None], obstacles: Mapping[Phase, str]
) -> Iterator[str]:
    """Yield how many containers have a task that has not begun its payload, by phase."""
    total = len(state.instances)
    unrecorded = sum(
        container.phase is Phase.WAITING
        and container.container_id in state.containers.open
        and state.role_of(container).may_start
        for _, container in state.journal.unrecorded
    )
    if unrecorded:
        yield f"{unrecorded} waiting until the journal is written"
    at_the_gate = sum(
        one.phase is Phase.WAITING and not state.role_of(one).may_start
        for instance in state.instances
        if (one := instance.container) is not None and one.result is None and one.end is None
    )
    if at_the_gate:
        yield f"{at_the_gate} of {total} at the gate"
    on_the_way = counts[Phase.WAITING] - unrecorded - at_the_gate  # their orders are
    for phase in reversed(_ON_THE_WAY):
        if count := counts[phase] + (on_the_way if phase is Phase.STARTING else 0):
            what = phase.value if count == total else f"{count} {phase.value}"
            yield what + (_starting(state) if phase is Phase.STARTING else "") + obstacles.get(phase, "")


def _waiting_texts(state: ApplicationState, counts: Counter[Phase | None]) -> Iterator[str]:
    """Yield how many indexes wait for a container, and for what."""
    paused = [until_ms for role in state.roles for until_ms in role.paused.values()]
    if paused:
        at = _wall_time(state, min(paused))
        yield f"{len(paused)} container{'s' if len(paused) > 1 else ''} tried again at {at}"
    held_back = [role for role in state.roles if not role.is_wanted]
    for gate in state.gates:
        if text := _gang_window(state, gate):
            yield text
            held_back += [role for role in state.roles_of(gate) if role.is_wanted]
    if (waiting := counts[None] - len(paused) - sum(role.waiting for role in held_back)) > 0:
        yield f"waiting for {waiting} container{'s' if waiting > 1 else ''}{_unallocated(state)}"


def _last_ends(state: ApplicationState) -> str:
    """Return which containers have not ended although their results are known, once that has taken some time."""
    since_ms = state.closing.until_ms - state.timing.end_ms
    if not state.containers.live or state.awake_ms - since_ms < SHOWN_AFTER_S * 1000:
        return ""
    ids = sorted(str(one.container_id) for one in state.containers.live.values())
    more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
    since, until = _wall_time(state, since_ms), _wall_time(state, state.closing.until_ms)
    return f"waits for the end of {ids[0]}{more} since {since}, until {until}"


def _kept_text(state: ApplicationState) -> str:
    """Return which containers are kept after their failures, if nothing else is open; otherwise empty."""
    until_ms: dict[int, int] = {}
    for one in state.containers.open.values():
        if one.instance is None or one.kept_until_ms is None:
            return ""
        until_ms[one.instance.index] = one.kept_until_ms
    if not until_ms:
        return ""
    names = f"container{'s' if len(until_ms) > 1 else ''} {', '.join(ranges(sorted(until_ms)))}"
    return f"failed, {names} kept until {_time_text(max(until_ms.values()))} (keep_failed)"


def missing_containers(state: ApplicationState) -> tuple[PendingRequest, ...]:
    """Return the requested and missing containers, by role. Only the engine knows why they are missing."""
    if state.stage is not Stage.ACTIVE or not state.start_gate.is_open:
        return ()
    if all(role.missing <= 0 for role in state.roles):
        return ()
    found, since_ms = [], _unallocated_since_ms(state)
    for role in state.roles:
        if role.missing > 0:
            placement, asked = state.spec.placement_of(role.spec), role.spec.resources
            found.append(
                PendingRequest(
                    role=role.spec.name,
                    count=role.missing,
                    memory_mib=asked.memory_mib,
                    vcores=asked.vcores,
                    gcores=asked.gcores,
                    nodes=placement.nodes,
                    exclude_nodes=placement.exclude_nodes,
                    node_label=placement.node_label or "",
                    together=not role.gate.open,
                    since_ms=since_ms,
                )
            )
    return tuple(found)


def waiting_of(state: ApplicationState, wait: str = "") -> Waiting | None:
    """Return why containers do not run yet, as far as the ApplicationMaster knows; None: all that can run do.

    A role that waits for another one is the reason only if there is no other: the other role may be waiting itself.
    ``wait`` is as in `of`.
    """
    if state.stage is Stage.STARTING:
        text = state.waiting_for or wait
        return Waiting(code=SERVICE_AWAY, message=text, since_ms=state.lifetime.started_ms) if text else None
    if state.stage is not Stage.ACTIVE:
        return None
    if text := closed_text(state):
        code, change = (DEPENDENCY, "") if state.start_gate.pending else (HELD, release_text(str(state.application_id)))
        return Waiting(code=code, message=text, since_ms=state.submission.submitted_ms, change=change)
    found = [one for gate in state.gates if (one := _gang_wait(state, gate)) is not None]
    for service, text in _service_waits(state).items():
        found.append(Waiting(code=SERVICE_AWAY, message=text, resource=service))
    if wait:
        found.append(Waiting(code=SERVICE_AWAY, message=wait))
    counts = _counts(state)
    words = [f"{counts[phase]} {phase.value}" for phase in _ON_THE_WAY if counts[phase]]
    if words:
        since_ms = min(
            (one.started_ms for one in state.containers.open.values() if one.phase in _ON_THE_WAY), default=None
        )
        found.append(Waiting(code=STARTING, message=", ".join(words), since_ms=since_ms))
    if not found and not missing_containers(state) and (texts := _dependencies(state)):
        return Waiting(code=DEPENDENCY, message=", ".join(texts))
    return first_of(found)


def _gang_wait(state: ApplicationState, gate: Gate) -> Waiting | None:
    if gate.failure is not None or not (text := _gang_window(state, gate)):
        return None
    members, gpus = gang_window.missing_resources(state, gate)
    asked = gpus or members
    return Waiting(code=GANG_PARTIAL, message=text, resource="gcores" if gpus else "containers", asked=asked)


def _gang_window(state: ApplicationState, gate: Gate) -> str:
    """Return what a gang holds and lacks: ``3 of 4 held, waiting for 2 GPUs, until 14:12:03 (gang_window)``; or that it
    failed.

    Empty: it is complete, or holds nothing and requests everything.
    """
    if (failure := gate.failure) is not None:
        return f"waiting for the end of the gang of container {failure.member}, which failed"
    if gate.open:
        return ""
    if gate.paused_until_ms is not None:
        return f"released its containers (gang_window), retries at {_wall_time(state, gate.paused_until_ms)}"
    members, gpus = gang_window.missing_resources(state, gate)
    if not members or not gang_window.held_containers(state, gate):
        return ""
    count, what = (gpus, "GPU") if gpus else (members, "container")
    until_ms = state.awake_ms + int(state.spec.gang_window_s * 1000) - gate.held_ms
    return (
        f"{gate.size - members} of {gate.size} held, waiting for {count} {what}{'s' if count > 1 else ''}, "
        f"until {_wall_time(state, until_ms)} (gang_window)"
    )


def _dependencies(state: ApplicationState) -> list[str]:
    """Return for each role that waits for others which ones are missing: ``eval waits for worker (done)``."""
    texts = []
    for role, conditions in state.conditions.items():
        missing = [f"{other.spec.name}{_UNTIL[until]}" for other, until in conditions if not is_met(other, until)]
        if missing and len(role.begun | role.lost) < role.spec.instances:
            texts.append(f"{role.spec.name} waits for {', '.join(missing)}")
    return texts


def _service_waits(state: ApplicationState) -> dict[str, str]:
    """Return for each unavailable service how many containers wait for it, since when, and until when."""
    since_ms: dict[str, list[int]] = {}
    for index, service in state.service_waits.items():
        since_ms.setdefault(service, []).append(state.instances[index].waits_since_ms[service])
    patience_ms = int(state.spec.service_patience_s * 1000)
    return {
        service: f"{len(times)} waiting for {service} since {_wall_time(state, min(times))}, "
        f"until {_wall_time(state, min(times) + patience_ms)}"
        for service, times in since_ms.items()
    }


def _wall_time(state: ApplicationState, awake_ms: int) -> str:
    return _time_text(state.now_ms + awake_ms - state.awake_ms)


def _time_text(at_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1000))


def _unallocated(state: ApplicationState) -> str:
    """Return since when and until when containers have been awaited, if long: ``since 14:02:03, until 15:02:03``.

    An engine grants them when there is room; only the application's time limit ends the wait.
    """
    since_ms = _unallocated_since_ms(state)
    if state.now_ms - since_ms < SHOWN_MS:
        return ""
    text = f" since {_time_text(since_ms)}"
    if (limit_s := state.spec.max_runtime_s) is not None:
        started_ms = state.now_ms if state.lifetime.started_ms is None else state.lifetime.started_ms
        text += f", until {_time_text(started_ms + int(limit_s * 1000))} (max_runtime)"
    return text


def _unallocated_since_ms(state: ApplicationState) -> int:
    """Return since when containers have been awaited [ms since 1970]."""
    wanted = {index for role in state.roles if role.is_wanted for index in role.indexes if index not in role.paused}
    waiting = [one for one in state.instances if one.container is None and not one.given_up and one.index in wanted]
    started_ms = state.now_ms if state.lifetime.started_ms is None else state.lifetime.started_ms
    return min(
        (started_ms if one.last is None else one.last.finished_ms or started_ms for one in waiting), default=started_ms
    )


def _starting(state: ApplicationState) -> str:
    """Return since when and until when silent tasks have been awaited, if long."""
    silent = [one for one in state.containers.open.values() if not one.hello and one.phase is Phase.STARTING]
    since_ms = min((one.started_ms for one in silent), default=state.now_ms)
    if state.now_ms - since_ms < SHOWN_MS:
        return ""
    text = f" since {_time_text(since_ms)}"
    begun_ms = [one.node_has_it_ms for one in silent if one.node_has_it_ms is not None]
    if begun_ms:
        limit_ms = state.timing.prepare_ms if any(one.is_preparing for one in silent) else state.timing.hello_ms
        text += f", until {_wall_time(state, min(begun_ms) + limit_ms)}"
    return text


def _obstacles(state: ApplicationState) -> dict[Phase, str]:
    """Return what the first container in each phase waits for: ``: waits for 4.1 MiB on /data``.

    Waits for services are counted; see `_service_waits`.
    """
    found: dict[Phase, str] = {}
    for instance in state.instances:
        one = instance.container
        if one is not None and one.detail.startswith("waits ") and one.waits_since_ms is None:
            found.setdefault(one.phase, f": {one.detail}")
    return found


def _counts(state: ApplicationState) -> Counter[Phase | None]:
    """Return the number of indexes in each phase; None: without a container."""
    counts: Counter[Phase | None] = Counter()
    for instance in state.instances:
        container = instance.container
        if container is None:
            phase = Phase.ENDED if instance.given_up else None
        elif container.result is not None or container.end is not None:
            phase = Phase.ENDED
        else:
            phase = container.phase
        counts[phase] += 1
    # A started container without an index counts as an index that is starting.
    up = min(counts[None], sum(len(role.unbound) for role in state.roles))
    counts[None] -= up
    counts[Phase.STARTING] += up
    return counts


def _container(instance: Instance, container: Container) -> ContainerView:
    if container.view is not None:
        return container.view
    result, end = container.result, container.end
    message = ""
    if result is not None:
        message = of_result(result).reason
    elif container.stop_reason is not None:
        message = container.stop_reason.value
    elif end is not None:
        message = of_end(end).reason
    exit_code = signal = None
    if result is not None:
        exit_code, signal = result.exit_code, result.signal
    elif end is not None and -64 <= end.exit_status < 0:
        signal = -end.exit_status
    container.view = ContainerView(
        container_id=container.container_id,
        role=instance.role.name,
        role_index=instance.role_index,
        index=instance.index,
        attempt=container.try_number,
        host=container.host,
        phase=Phase.ENDED if end is not None else container.phase,
        progress=container.progress,
        detail=container.detail,
        metrics={} if container.payload is None else container.payload.metrics,
        step=None if container.payload is None else container.payload.step,
        ready=container.payload is not None and container.payload.ready,
        gpus=container.gpus,
        image=container.image,
        generation=container.generation,
        started_ms=container.started_ms,
        finished_ms=container.finished_ms,
        exit_code=exit_code,
        signal=signal,
        message=message,
        kept_until_ms=container.kept_until_ms if container.is_kept else None,
        log_url=container.grant.log_url,
        unstored=() if result is None else result.unstored,
        not_stored=None if result is None else result.not_stored,
        diagnosis=causes.of_container(container),
        usage=container.usage if result is None and end is None else None,
        receipt=container.cost,
        earlier=()
        if container is not instance.last
        else tuple(_container(instance, one).as_try() for one in instance.earlier),
    )
    return container.view
