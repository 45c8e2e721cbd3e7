"""Actions of dlapp-gpu for maintenance: health, drain, reset, and heal of a whole host."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from dlapp.errors import EXIT_FAILED, DlappError, TimedOut
from dlapp.system import clock
from dlapp.system.text import short_duration
from dlapp.system.waits import Wait
from dlapp.tools.common import note, print_json, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlapp.client.machine.drain import RemainingUser
    from dlapp.client.machine.gpu_ledger import GpuLedger
    from dlapp.config import Config

_LOOK_EVERY_S = 5.0
_GPU = re.compile(r"(gpu)?\d+(:\d+)?|(GPU|MIG)-.*|[0-9A-Fa-f:]+\.\d", re.ASCII)


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


def drain(
    config: Config,
    ledger: GpuLedger,
    name: str | None,
    *,
    host: str | None,
    reason: str,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Stop leasing a GPU, or all of a host, and show who still uses it; return 0 if nobody does.

    Args:
        config: for the engine that knows when applications end.
        ledger: the ledger that has the GPUs.
        name: a GPU, or a host; None: all GPUs of ``host``.
        host: None: this host.
        reason: one line for other operators.
        wait: until nobody uses them.
        timeout_s: how long to wait [s]; None: without a limit.
        as_json: print the answer as JSON.

    Raises:
        TimedOut: they are still in use.
    """
    from dlapp.client import caller
    from dlapp.client.machine.drain import close_devices, latest_ends, remaining_users, select_devices

    selection = select_devices(ledger, name, host)
    close_devices(ledger, selection, reason=reason or "drained", by=caller())
    left = remaining_users(ledger, selection, latest_ends(config))
    where = selection.host
    if not as_json:
        heal = where if selection.is_host else selection.text
        say(f"{where}: {selection.text}: no new program gets it until dlapp-gpu heal {heal}")
        if not ledger.is_cluster and os.geteuid() != 0:
            note(f"only your own programs: root's drain binds all users of {where}")
        say(*_remaining_lines(where, left))
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    if left and wait:
        with Wait(f"the end of the programs on {selection.text} of {where}", timeout_s):
            while left := remaining_users(ledger, selection, lambda _: None):
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimedOut(f"{where}: still in use after {timeout_s:g} s by {_applications(left)}")
                time.sleep(_LOOK_EVERY_S)
        if not as_json:
            say(*_remaining_lines(where, left))
    if as_json:
        devices = [one["label"] for one in selection.devices]
        print_json({"host": where, "devices": devices, "left": [one._asdict() for one in left]})
    return EXIT_FAILED if left else 0


def may_be_host(name: str) -> bool:
    """Return whether a name is none of a GPU: no index, uuid or PCI bus id."""
    return not _GPU.fullmatch(name)


def heal_host(ledger: GpuLedger, host: str, *, as_json: bool) -> int:
    """End the quarantine of all GPUs of a host that are in one; return 0. Raises NotFound: there is no such host."""
    from dlapp.client.machine.drain import select_devices

    selection = select_devices(ledger, host)
    healed = [one for one in selection.devices if one["quarantine"]]
    for one in healed:
        ledger.heal(one["uuid"], host=selection.host)
    labels = [one["label"] for one in healed]
    done = f"healed: {', '.join(labels)}" if labels else "no GPU was in quarantine"
    print_json({"host": selection.host, "devices": labels}) if as_json else say(f"{selection.host}: {done}")
    return 0


def reset(config: Config, ledger: GpuLedger, name: str, *, as_json: bool) -> int:
    """Reset a GPU of this host, and print the result; return 0 if it is healthy now.

    Args:
        config: the configuration of this machine.
        ledger: the ledger that has the GPU.
        name: of the GPU.
        as_json: print the answer as JSON.
    """
    from dlapp.client import caller
    from dlapp.client.machine.reset import reset_gpu

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


def _remaining_lines(host: str, left: Sequence[RemainingUser]) -> list[str]:
    now_ms = clock.now_ms()
    return [_remaining_line(host, one, now_ms) for one in left] or [f"{host}: nobody uses it"]


def _remaining_line(host: str, one: RemainingUser, now_ms: int) -> str:
    about = [one.user, short_duration(max(0, now_ms - one.since_ms) // 1000) if one.since_ms else ""]
    who = f"{one.application or 'an unknown holder'} ({', '.join(filter(None, about))})".removesuffix(" ()")
    until = (
        "no end is known" if one.ends_ms is None else f"until {clock.date_and_time(one.ends_ms / 1000)} at the latest"
    )
    return f"{host}: {', '.join(one.devices)} {who}, {until}" + (f", {one.doubt}" if one.doubt else "")


def _applications(left: Sequence[RemainingUser]) -> str:
    return ", ".join(one.application or "an unknown holder" for one in left)
