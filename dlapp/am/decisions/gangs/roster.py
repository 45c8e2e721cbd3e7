"""Changes of the roster, and when tasks get them.

The payloads of a gang start with one and the same roster. When a single member is replaced afterwards, or another gang
starts, the version grows and the tasks of running ones get it, all changes of a second at once: with ten thousand
containers each change is as many messages.
"""

from __future__ import annotations

from functools import partial

from dlapp.am.model.gate import Gate
from dlapp.am.model.instance import Container, Stage
from dlapp.am.model.roster import has_address, publish, roster_for
from dlapp.am.model.state import ApplicationState
from dlapp.values.messages import Stop

BETWEEN_CHANGES_MS = 1000


def begin(state: ApplicationState, gate: Gate) -> None:
    """Make what is known now the first roster of a generation: the payloads behind a gate start."""
    if state.roster.exists:
        state.roster.is_changed = True
        publish(state)
        gate.roster_version = 0


def send_roster(state: ApplicationState, container: Container) -> None:
    """Send a container a roster without which its payload does not start, if it has none and there is one."""
    orders = container.orders
    if orders is None or not orders.go or orders.roster or orders.stop is not Stop.NO or container.instance is None:
        return
    if number := roster_for(state, container):
        state.order(container, roster=number)


def check(state: ApplicationState) -> None:
    """Send a changed roster to the tasks with running payloads, if it is due."""
    roster = state.roster
    if not roster.exists or state.stage is not Stage.ACTIVE:
        return
    if not roster.is_known:
        _check_recovered(state)
    is_new = roster.is_changed or roster.announced != roster.number
    if not roster.is_known or not is_new or state.awake_ms < roster.quiet_until_ms:
        return
    running = [one for one in state.containers.open.values() if one.orders is not None and one.orders.roster]
    if not running:
        return
    roster.announced = publish(state)
    roster.quiet_until_ms = state.awake_ms + BETWEEN_CHANGES_MS
    for container in running:
        assert container.orders is not None
        if container.orders.roster != roster.announced and container.orders.stop is Stop.NO:
            state.order(container, roster=roster.announced)


def _may_lack_address(state: ApplicationState, container: Container) -> bool:
    """Return whether a container may run a payload at a place that is not known."""
    is_bound = container.instance is not None
    return container.unconfirmed or (is_bound and container.ran and not has_address(state, container))


def _check_recovered(state: ApplicationState) -> None:
    """Start payloads, or send them a new roster, once all tasks of an earlier attempt are connected or gone."""
    lack_address = map(partial(_may_lack_address, state), state.containers.open.values())
    if any(role.recovering for role in state.roles) or any(lack_address):
        return
    state.roster.is_known = True
    for container in state.containers.open.values():
        send_roster(state, container)
