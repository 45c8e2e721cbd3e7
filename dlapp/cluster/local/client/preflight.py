"""Checks of a request against this machine, before a submission."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlapp.cluster.local import schedule
from dlapp.errors import Denied, Refuse, RequestTooLarge, SpecError, Unreachable
from dlapp.scheduler.amounts import Amounts
from dlapp.system.owners import user_name

if TYPE_CHECKING:
    from dlapp.cluster.local.client.session import LocalSession
    from dlapp.gpuid.devices import Device
    from dlapp.values.spec import AppSpec

DOCKER_TIMEOUT_S = 2.0


def check(session: LocalSession, spec: AppSpec, refuse: Refuse) -> list[str]:
    """Reject a request that this machine can never satisfy.

    Args:
        spec: the application.
        refuse: called with each error.

    Returns:
        A line for each key that has no effect on one machine, and one if NVIDIA's driver does not work.

    Raises:
        RequestTooLarge: the request exceeds the machine; with the amounts.
        Denied: this user may not run the required program, or the GPU ledger does not serve this user; the message
            has what root can do.
        NvmlError: it requests GPUs, and NVIDIA's driver does not work.
    """
    from dlapp.cluster.local.capacity import capacity_of
    from dlapp.cluster.local.queue_state import read_policy

    _check_program(session)
    devices, driver_error = session.gpus()
    capacity, refused = capacity_of(session.settings, session.usable(devices)), set[str]()
    notes: list[str] = []
    if driver_error is not None and spec.total()[2]:
        refuse(driver_error)
        capacity = capacity._replace(gcores=spec.total()[2])  # not known
    elif driver_error is not None:
        notes.append(f"it runs without GPUs: {driver_error}")
    if spec.total()[2] and devices:
        refused |= _check_kinds(spec, devices, refuse)
    for role in spec.roles:
        for never in schedule.too_large(Amounts(*role.resources.times(1)), capacity):
            key = f"{spec.section_of(role)}.{never.name}"
            if key in refused:
                continue
            each = "each container " if spec.containers > 1 else ""
            of = f"of role {role.name} " if each and len(spec.roles) > 1 else ""
            refused.add(never.name)
            refuse(RequestTooLarge(f"{each}{of}{never.problem} ({never.hint})", key))
    for never in schedule.too_large(Amounts(*spec.total()), capacity):
        if never.name not in refused:
            refused.add(never.name)
            problem = f"{spec.containers} containers {never.problem}, and they run at the same time ({never.hint})"
            refuse(RequestTooLarge(problem, "resources.containers" if len(spec.roles) == 1 else "role"))
    if spec.after:
        _check_after(session, spec, refuse)
    if spec.view_acl or spec.modify_acl:
        from dlapp.cluster.local.client.shared_tokens import check_access

        check_access(spec, session.state, refuse)
    gcores, most = spec.total()[2], read_policy().gcores_of(session.uid)
    if gcores and most is not None and gcores > most:
        problem = f"asked for {gcores} gcores, and your applications may have {most} at a time"
        refuse(RequestTooLarge(f"{problem} (queue.user_gcores of node.yaml)", "resources.gcores"))
    if spec.uses_docker:
        _check_docker(session, refuse, gcores=gcores)
    if spec.total()[2] > 0:
        _check_ledger(session, refuse)
    keys = [*(["application.queue"] if spec.queue is not None else []), *(key for key, _ in spec.placement_keys())]
    return [*notes, *(f"{key} has no effect on one machine" for key in keys)]


def _check_kinds(spec: AppSpec, devices: Sequence[Device], refuse: Refuse) -> set[str]:
    """Reject a request for GPUs of a kind of which this machine has too few. Where all are of one kind, their number is
    checked with the other amounts.

    Returns:
        ``gcores`` if it does, and the key of the gcores of each role that alone asks for too many.
    """
    from dlapp.gpuid.needs import Demand, DeviceNeed, are_plain, demands_of, too_few
    from dlapp.values.spec import BY_INDEX

    demands, has, refused = demands_of(spec), "this machine has", set[str]()
    if are_plain(demands, devices):
        return refused
    for role in spec.roles:
        place, section = spec.placement_of(role), spec.section_of(role)
        demand = Demand(role.resources.gcores, DeviceNeed(place.gpu, place.gpu_memory_mb))
        split = next((one for one in devices if one.mig >= 0), None)
        by_index = place.cuda_visible_devices == BY_INDEX and spec.image_of(role) is None
        if demand.gcores and by_index and split is not None:
            text = f"index needs GPUs that are whole: gpu{split.index} of this machine is split by MIG, so CUDA's"
            refuse(SpecError(f"{section}.cuda_visible_devices", f"{text} indexes are not those of the driver (uuid)"))
        if demand.gcores and (shortage := too_few((demand,), devices, has)):
            each = "each container " if spec.containers > 1 else ""
            refuse(RequestTooLarge(f"{each}{shortage.text}", f"{section}.{shortage.key}"))
            refused |= {"gcores", f"{section}.gcores"}
    if not refused and (shortage := too_few(demands, devices, has)):
        text = f"{spec.containers} containers {shortage.text}, and they run at the same time"
        refuse(RequestTooLarge(text, "resources.containers" if len(spec.roles) == 1 else "role"))
        refused.add("gcores")
    return refused


def _check_after(session: LocalSession, spec: AppSpec, refuse: Refuse) -> None:
    """Reject an ``after`` that does not exist, is another user's, or did not end as required."""
    from dlapp.cluster.local.runner.dependencies import ends_of
    from dlapp.values.start_conditions import evaluate_conditions

    known = []
    for one in spec.after:
        if session.queue().row(one.application_id) is None:
            refuse(SpecError("application.after", _no_such(session, one.application_id)))
        else:
            known.append(one)
    if failure := evaluate_conditions(known, ends_of(session.queue(), known)).failure:
        refuse(SpecError("application.after", failure))


def _no_such(session: LocalSession, application_id: str) -> str:
    """Return why an application is not one of the caller's."""
    if session.state.shared:
        from dlapp.cluster.local.client import other_users

        if owners := other_users.owners_of(session.state, application_id):
            return f"{application_id} is {user_name(owners[0].uid)}'s; it can wait for your own applications only"
    return f"{application_id} is not known on this machine (dlapp-list shows what is)"


def _check_program(session: LocalSession) -> None:
    """Reject a submission whose processes this user could not start. Raises Denied."""
    python, *words = session.program
    closed = [] if os.access(python, os.X_OK, effective_ids=True) else [python]
    closed += [one for one in words if one.endswith(".py") and not os.access(one, os.R_OK, effective_ids=True)]
    if closed:
        what = "run" if closed[0] == python else "read"
        raise Denied(
            f"{user_name(session.uid)} may not {what} {closed[0]}, with which applications are started: "
            "install dlapp where all its users can read it, not in a home directory"
        )


def _check_ledger(session: LocalSession, refuse: Refuse) -> None:
    from dlapp.system.files import UntrustedFile
    from dlapp.system.shared_directory import open_shared_directory

    try:
        os.close(open_shared_directory(session.settings.lock_dir))
    except FileNotFoundError:
        pass  # the first lease creates it
    except UntrustedFile as error:
        refuse(Denied(f"gpuid.lock_dir: {error}"))


def _check_docker(session: LocalSession, refuse: Refuse, *, gcores: int) -> None:
    import socket

    if gcores > 0 and session.settings.docker_gpu_mode == "none":
        refuse(SpecError("resources.gcores", "containers get no GPUs here: runtime.docker.gpu_mode is none"))
    host = session.settings.docker_host
    if not host.startswith("unix://"):
        problem = f"needs this machine's dockerd, and runtime.docker.host is {host}"
        refuse(SpecError("application.docker_image", problem))
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(DOCKER_TIMEOUT_S)
        try:
            probe.connect(host.removeprefix("unix://"))
        except OSError as error:
            why = f"Docker at {host} does not answer ({error.strerror or error})"
            refuse(Unreachable(f"{why}; does dockerd run, and are you allowed to use it? (runtime.docker.host)"))
