"""What the ApplicationMaster knows, as tools show it.

The view is written a few times a second at most, and may hold ten thousand containers: of a container that did not
change, the last value is used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.am.instance import Container, Instance, Stage
from dlapp.am.verdict import of_end, of_result
from dlapp.control import Phase
from dlapp.report import ApplicationView, Cause, ContainerView, FinalStatus, State

if TYPE_CHECKING:
    from dlapp.am.master import Master

_ON_THE_WAY = (Phase.STARTING, Phase.LEASING, Phase.UNPACKING, Phase.FETCHING, Phase.PULLING)


def of(master: Master, tracking_url: str) -> ApplicationView:
    """The view of an application.

    ``state`` is RUNNING until the engine was told of the end: whoever reads FINISHED finds everything in its place.
    """
    spec = master.spec
    memory_mib, vcores, gcores = spec.total()
    ended = master.stage is Stage.ENDED
    ending = master.ending if ended else None
    return ApplicationView(
        application_id=master.application_id,
        attempt=master.attempt,
        state=State.RUNNING if ending is None else state_of(ending.cause),
        final_status=FinalStatus.UNDEFINED if ending is None else ending.final_status,
        cause=None if ending is None else ending.cause,
        phase="" if ended else phase_of(master),
        diagnostics=master.ending.diagnostics if master.ending else "",
        username=spec.username,
        appname=spec.appname,
        submitter=master.submission.submitter,
        queue=spec.queue or "default",
        submitted_ms=master.submission.submitted_ms,
        started_ms=master.started_ms,
        finished_ms=master.finished_ms,
        total_containers=len(master.instances),
        memory_mib=memory_mib,
        vcores=vcores,
        gcores=gcores,
        tracking_url=tracking_url,
        soft_kill_by=master.soft_by,
        soft_kill_ends_ms=master.soft_ends_ms,
        containers=tuple(_container(one, one.last) for one in master.instances if one.last is not None),
        outputs=master.outputs,
    )


def state_of(cause: Cause) -> State:
    """YARN's state for an end that the ApplicationMaster itself told the engine: FINISHED, whatever its final status.

    FAILED is that of an application whose ApplicationMaster died. Source: yarn_protos.proto, YarnApplicationStateProto.
    """
    return State.KILLED if cause is Cause.KILLED else State.FINISHED


def phase_of(master: Master) -> str:
    """A few words on where it is: ``running 3 of 4, waiting for 1 container``."""
    match master.stage:
        case Stage.STARTING:
            return "starting"
        case Stage.SETTLING | Stage.LEAVING:
            return "committing" if master.commits else "ending"
        case _:
            pass
    counts = _counts(master)
    total = len(master.instances)
    storing = counts.get(Phase.STORING, 0) + counts.get(Phase.RELEASING, 0)
    running = counts.get(Phase.RUNNING, 0)
    if master.stage is Stage.CLOSING:
        if master.soft_by and running:
            return f"stopping, {running} of {total} still running"
        return "storing" if storing else "stopping"
    words = []
    if running:
        words.append(f"running {running} of {total}")
    if storing:
        words.append("storing" if storing == total or not running else f"{storing} storing")
    if at_the_gate := counts.get(Phase.WAITING, 0):
        words.append(f"{at_the_gate} of {total} at the gate")
    for phase in reversed(_ON_THE_WAY):
        if count := counts.get(phase, 0):
            words.append(phase.value if count == total else f"{count} {phase.value}")
    if waiting := counts.get(None, 0):
        words.append(f"waiting for {waiting} container{'s' if waiting > 1 else ''}")
    if (done := counts.get(Phase.ENDED, 0)) and done < total:
        words.append(f"{done} done")
    return ", ".join(words) or "ending"


def _counts(master: Master) -> dict[Phase | None, int]:
    """How many indexes are in each phase; None: without a container."""
    counts: dict[Phase | None, int] = {}
    for instance in master.instances:
        container = instance.container
        if container is None:
            phase = Phase.ENDED if instance.given_up else None
        elif container.result is not None or container.end is not None:
            phase = Phase.ENDED
        else:
            phase = container.phase
        counts[phase] = counts.get(phase, 0) + 1
    # A container that was started and has no index yet is as good as an index on its way.
    up = min(counts.get(None, 0), sum(len(role.unbound) for role in master.roles))
    if up:
        counts[None] -= up
        counts[Phase.STARTING] = counts.get(Phase.STARTING, 0) + up
    return counts


def _container(instance: Instance, container: Container) -> ContainerView:
    if container.view is not None:
        return container.view
    result, end = container.result, container.end
    message = ""
    if result is not None:
        message = of_result(result).reason
    elif container.why is not None:
        message = container.why.value
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
        gpus=container.gpus,
        image=container.image,
        started_ms=container.started_ms,
        finished_ms=container.finished_ms,
        exit_code=exit_code,
        signal=signal,
        message=message,
        log_url=container.grant.log_url,
    )
    return container.view
