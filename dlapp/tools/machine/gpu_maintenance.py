"""Actions of dlapp-gpu for maintenance: health, quarantine, drain, reset and heal."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from dlapp.errors import EXIT_FAILED, DlappError, NotFound, TimedOut
from dlapp.system import clock
from dlapp.system.text import short_duration
from dlapp.system.waits import Wait
from dlapp.tools.common import note, print_json, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dlapp.client.machine.drain import DeviceSelection, RemainingUser
    from dlapp.client.machine.gpu_ledger import GpuLedger
    from dlapp.config import Config

_LOOK_EVERY_S = 5.0


def health(*, as_json: bool) -> int:
    """Print whether YARN may start containers on this machine, as a NodeManager's health script; return 0 always: a
    NodeManager takes each other exit code for healthy."""
    from dlapp.client.machine.node_health import machine_health
    from dlapp.config import load_config

    host = os.uname().nodename
    try:
        # A NodeManager's user has no configuration of its own, or one for other purposes.
        found = machine_health(load_config(is_of_machine=True))
    except (DlappError, OSError) as error:
        line = f"unknown: {host}: {error}"
        print_json({"host": host, "error": str(error), "problems": [], "users": []}) if as_json else say(line)
        return 0
    problems = "; ".join(found.problems)
    if as_json:
        print_json({"host": host, "error": "", "problems": found.problems, "users": found.users})
    elif not problems:
        say("ok")
    elif found.users:
        say(f"not reported yet, because YARN would end what runs: {', '.join(found.users)}: {host}: {problems}")
    else:
        say(f"ERROR {host}: {problems}")
    return 0


def quarantine(ledger: GpuLedger, names: Sequence[str], *, host: str | None, reason: str, as_json: bool) -> int:
    """Stop leasing GPUs; return 0.

    Args:
        ledger: the ledger that has them.
        names: see `dlapp.client.machine.drain.select_gpus`.
        host: None: this host.
        reason: one line for other operators; empty: that of an earlier quarantine stays.
        as_json: print the answer as JSON.

    Raises:
        NotFound: there is no such GPU; then none is closed.
    """
    from dlapp.client.machine.drain import close_devices, select_devices, select_gpus
    from dlapp.client.operations.connections import caller

    try:
        selection = select_gpus(ledger, names, host)
    except NotFound:
        where = ""
        if host is None and len(names) == 1:
            with contextlib.suppress(DlappError):
                where = select_devices(ledger, names).host
        if not where:
            raise
        raise NotFound(f"{where} is a host: dlapp-gpu drain {where} stops leasing all its GPUs") from None
    close_devices(ledger, selection, reason=reason, by=caller(), replaces=True)
    if as_json:
        print_json({"host": selection.host, "devices": _labels(selection)})
        return 0
    say(f"{selection.host}: {selection.text}: in quarantine until {_heal_command(ledger, selection)}")
    _note_author(ledger, "quarantine")
    return 0


def drain(
    config: Config,
    ledger: GpuLedger,
    names: Sequence[str],
    *,
    host: str | None,
    reason: str,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Stop leasing GPUs, or all of a host, and show who still uses them; return 0 if it is known that nobody does.

    Args:
        config: for the engine that knows when applications end.
        ledger: the ledger that has the GPUs.
        names: GPUs, or a host; empty: all GPUs of ``host``.
        host: None: this host.
        reason: one line for other operators.
        wait: until nobody uses them.
        timeout_s: how long to wait [s]; None: without a limit.
        as_json: print the answer as JSON.

    Raises:
        TimedOut: they are still in use, or may be.
    """
    from dlapp.client.machine.drain import (
        close_devices,
        foreign_users,
        latest_ends,
        remaining_users,
        select_devices,
    )
    from dlapp.client.operations.connections import caller

    selection = select_devices(ledger, names, host)
    close_devices(ledger, selection, reason=reason or "drained", by=caller())
    noted: set[str] = set()

    def note_once(text: str) -> None:
        if text not in noted:
            noted.add(text)
            note(text)

    def users(ends_ms: Callable[[str], int | None]) -> tuple[list[RemainingUser], str]:
        processes, unknown = foreign_users(ledger, selection, note_once)
        return [*remaining_users(ledger, selection, ends_ms), *processes], unknown

    left, unknown = users(latest_ends(config))
    where = selection.host
    if not as_json:
        what = "it" if len(selection.devices) == 1 else "them"
        say(f"{where}: {selection.text}: no new program gets {what} until {_heal_command(ledger, selection)}")
        _note_author(ledger, "drain")
        say(*_remaining_lines(where, left, unknown))
    if (left or unknown) and wait:
        _wait_until_unused(selection, lambda: users(lambda _: None), timeout_s)
        left, unknown = [], ""
        if not as_json:
            say(*_remaining_lines(where, left, unknown))
    if as_json:
        rows = [one._asdict() for one in left]
        print_json({"host": where, "devices": _labels(selection), "left": rows, "error": unknown})
    return EXIT_FAILED if left or unknown else 0


def _wait_until_unused(
    selection: DeviceSelection, users: Callable[[], tuple[list[RemainingUser], str]], timeout_s: float | None
) -> None:
    """Wait until nobody uses GPUs.

    Args:
        selection: the GPUs.
        users: returns who uses them now, and why that is not known; empty: it is.
        timeout_s: how long to wait [s]; None: without a limit.

    Raises:
        TimedOut: they are still in use, or may be.
    """
    where, deadline = selection.host, None if timeout_s is None else time.monotonic() + timeout_s
    with Wait(f"the end of the programs on {selection.text} of {where}", timeout_s):
        while True:
            left, unknown = users()
            if not left and not unknown:
                return
            if deadline is not None and time.monotonic() >= deadline:
                after = f"after {timeout_s:g} s"
                if left:
                    raise TimedOut(f"{where}: still in use {after} by {', '.join(map(_who, left))}")
                raise TimedOut(f"{_unknown_line(where, left, unknown)} ({after})")
            time.sleep(_LOOK_EVERY_S)


def heal(ledger: GpuLedger, names: Sequence[str], *, host: str | None, as_json: bool) -> int:
    """End the quarantine of GPUs, or of all of a host; return 0.

    Args:
        ledger: the ledger that has them.
        names: GPUs, or a host.
        host: None: this host.
        as_json: print the answer as JSON.

    Raises:
        NotFound: there is no such GPU, or no such host; then none is healed.
    """
    from dlapp.client.machine.drain import select_devices

    selection = select_devices(ledger, names, host)
    devices = [one for one in selection.devices if one["quarantine"]] if selection.is_host else selection.devices
    is_healed = {one["label"]: ledger.heal(one["uuid"], host=selection.host) for one in devices}
    healed = [label for label, was_closed in is_healed.items() if was_closed]
    others = [label for label, was_closed in is_healed.items() if not was_closed]
    if as_json:
        print_json({"host": selection.host, "devices": healed, "healed": bool(healed)})
        return 0
    if healed:
        say(f"{selection.host}: healed: {', '.join(healed)}")
    if others:
        were = "was" if len(others) == 1 else "were"
        say(f"{selection.host}: {', '.join(others)}: {were} not in quarantine; earlier failures no longer count")
    if not is_healed:
        say(f"{selection.host}: no GPU was in quarantine")
    return 0


def reset(config: Config, ledger: GpuLedger, name: str, *, as_json: bool) -> int:
    """Reset a GPU of this host, and print the result; return 0 if it is healthy now.

    Args:
        config: the configuration of this machine.
        ledger: the ledger that has the GPU.
        name: of the GPU.
        as_json: print the answer as JSON.
    """
    from dlapp.client.machine.reset import reset_gpu
    from dlapp.client.operations.connections import caller

    done = reset_gpu(ledger, config, name, by=caller())
    if as_json:
        print_json(done._asdict())
    else:
        labels = ", ".join(done.devices)
        lines = [f"not reset: {labels}: {done.problem}" if done.problem else f"reset: {labels}"]
        if done.healed:
            lines.append(f"healthy, and leased again: {', '.join(done.healed)}")
        lines += [f"{label} stays in quarantine: {fault}" for label, fault in done.faults.items()]
        say(*(f"{done.host}: {line}" for line in lines))
    return EXIT_FAILED if done.problem or done.faults else 0


def _labels(selection: DeviceSelection) -> list[str]:
    return [one["label"] for one in selection.devices]


def _heal_command(ledger: GpuLedger, selection: DeviceSelection) -> str:
    if selection.is_host:
        return f"dlapp-gpu heal {selection.host}"
    elsewhere = "" if selection.host == ledger.host_name else f" --host {selection.host}"
    return f"dlapp-gpu heal {' '.join(selection.names)}{elsewhere}"


def _note_author(ledger: GpuLedger, what: str) -> None:
    if not ledger.is_cluster and os.geteuid() != 0:
        note(f"only your own applications: root's {what} binds all users of {ledger.host_name}")


def _remaining_lines(host: str, left: Sequence[RemainingUser], unknown: str) -> list[str]:
    now_ms = clock.now_ms()
    lines = [_remaining_line(host, one, now_ms) for one in left]
    if unknown:
        lines.append(_unknown_line(host, left, unknown))
    return lines or [f"{host}: nobody uses it"]


def _unknown_line(host: str, left: Sequence[RemainingUser], unknown: str) -> str:
    leases = "" if left else "no lease is left; "
    return f"{host}: {leases}processes without a lease are not known: {unknown}"


def _remaining_line(host: str, one: RemainingUser, now_ms: int) -> str:
    if one.pid:
        return f"{host}: {', '.join(one.devices)} {_who(one)}, without a lease"
    about = [one.user, short_duration(max(0, now_ms - one.since_ms) // 1000) if one.since_ms else ""]
    who = f"{_who(one)} ({', '.join(filter(None, about))})".removesuffix(" ()")
    until = (
        "no end is known" if one.ends_ms is None else f"until {clock.date_and_time(one.ends_ms / 1000)} at the latest"
    )
    return f"{host}: {', '.join(one.devices)} {who}, {until}" + (f", {one.doubt}" if one.doubt else "")


def _who(one: RemainingUser) -> str:
    if one.pid:
        return f"process {one.pid} ({', '.join(filter(None, (one.program, one.user))) or 'whose name is hidden'})"
    return one.application or "an unknown holder"
