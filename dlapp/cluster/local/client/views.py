"""Lists of the caller's applications and of those of all users of a shared directory, and what explains waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlapp.cluster.local import views
from dlapp.cluster.local.client.session import readable_policy
from dlapp.cluster.local.row import WAITING
from dlapp.cluster.local.runner.election import is_runner_alive
from dlapp.cluster.local.schedule import QueueOrder
from dlapp.system.machine import boot_id
from dlapp.system.owners import user_name

if TYPE_CHECKING:
    from dlapp.cluster.engine import QueueFacts
    from dlapp.cluster.local.client.session import LocalSession
    from dlapp.cluster.local.client.waits import MachineWaits


def ids(session: LocalSession, *, everybody: bool) -> list[str]:
    """Return the ids of the caller's applications, or of all users' in a shared directory, oldest first."""
    found = [] if session.has_no_rows else session.queue().ids(session.uid)
    if everybody and session.state.shared:
        from dlapp.cluster.local.client import other_users

        found = [one for other in session.state.others() for one in other_users.ids_of(other)] + found
        found.sort(key=lambda one: tuple(map(int, one.split("_")[1:])))
    return found


def issued(session: LocalSession, application_id: str) -> bool:
    """Return whether this engine issued an id; see `dlapp.cluster.engine.Engine`."""
    if session.has_no_rows:
        return False
    if application_id.startswith(f"application_{session.queue().timestamp_ms()}_"):
        return True
    if not session.state.shared:
        return False
    from dlapp.cluster.local.client import other_users

    return bool(other_users.owners_of(session.state, application_id))


def views_json(session: LocalSession, everybody: bool, user: str | None, limit: int | None) -> list[dict[str, Any]]:
    """Return the views of many applications as JSON; see `dlapp.cluster.engine.Engine.views`.

    Args:
        session: the caller's.
        everybody, user, limit: see there.
    """
    if session.has_no_rows:
        return []
    whose, values = "uid = ?", (session.uid,)
    if user is not None:
        # All rows here belong to the directory's owner, whatever names they contain. A caller may use the names of
        # their own files (username).
        if user == user_name(session.state.uid):
            whose, values = "TRUE", ()  # type: ignore[assignment]
        else:
            whose, values = "username = ?", (user,)  # type: ignore[assignment]
    elif everybody:
        whose, values = "TRUE", ()  # type: ignore[assignment]
    queue = session.queue()
    running = queue.rows(f"state = 'running' AND {whose}", values, columns="id")
    alive, has_runner = {row.id for row in running if session.is_alive(row.id)}, False
    if len(alive) < len(running):
        has_runner = is_runner_alive(session.state, session.state.uid)
        alive |= {row.id for row in running if row.id not in alive and session.is_alive(row.id)}
    rows = queue.rows(f"state != 'done' AND {whose}", values)
    some = "" if limit is None else f" LIMIT {int(limit)}"
    # One that ended between the two queries is in both.
    known = {row.number for row in rows}
    ended = queue.rows(f"state = 'done' AND {whose} ORDER BY number DESC{some}", values)
    rows += [row for row in ended if row.number not in known]
    rows.sort(key=lambda row: row.number)
    of_others = session.state.shared and (everybody or user is not None)
    is_needed = of_others or any(row.state == WAITING for row in rows)
    waiting = session.waiting() if is_needed else QueueOrder()
    found, boot = list[views.View](), boot_id()
    for row in rows:
        where, is_up = session.state.application(row.id), row.id in alive
        found.append(views.view_of(row, where, boot, waiting, alive=is_up, has_runner=has_runner, short=True))
    if of_others:
        from dlapp.cluster.local.client import other_users

        for other in session.state.others():
            if user in (None, user_name(other.uid)):
                found += other_users.views_of(other, boot, waiting, limit=limit)
        found.sort(key=lambda one: int(one["submitted_ms"]))
    return found


def queue_facts(session: LocalSession) -> QueueFacts:
    """Return the start order of the waiting applications and, for the caller's own, the expected times."""
    from dlapp.cluster.engine import QueueFacts, UserShare

    found = session.waiting()
    order = tuple(one.id for one in found.entries)
    whole, shares = sum(found.hours.values()), list[UserShare]()
    unit = "GPU-hours" if readable_policy().charge == "gcores" else "core-hours"
    for uid, hours in sorted(found.hours.items(), key=lambda one: -one[1]) if whole else ():
        meaning = f"of the recent use by all, {hours:.3g} {unit}"
        shares.append(UserShare(user=user_name(uid), queue="default", share=hours / whole, meaning=meaning))
    return QueueFacts(order=order, estimates=waits_of(session).estimates(), shares=tuple(shares))


def waits_of(session: LocalSession) -> MachineWaits:
    """Return what explains waits on this machine."""
    from dlapp.cluster.local.client.waits import MachineWaits

    return MachineWaits(
        session.state,
        session.queue(),
        session.capacity(),
        session.settings.lock_dir,
        session.nvml,
        readable_policy().gcores_of(session.uid),
    )
