"""dlapp-gpu: the holders of GPUs, and an operator's actions on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from dlapp.errors import EXIT_FAILED, EXIT_UNREACHABLE, UsageError
from dlapp.tools.common import ActionChoice, command, json_option, note, print_json, read_duration, say

if TYPE_CHECKING:
    from dlapp.client.machine.gpu_ledger import GpuLedger
    from dlapp.config import Config

GC_TIMEOUT_S = 120.0
LISTEN = "127.0.0.1:9441"
LINES_AT_ONCE = 500
MAX_GPUS = 1000
"""Maximum number of GPUs of one host in a command."""
MAX_PROBLEMS = 20
"""Maximum number of invalid entries of the machine's ledger in a message."""
_WORDS = {
    "list": (0, 1, "[HOST]"),
    "gc": (0, 100_000, "[HOST]..."),
    "quarantine": (1, MAX_GPUS, "GPU..."),
    "heal": (1, MAX_GPUS, "GPU...|HOST"),
    "drain": (0, MAX_GPUS, "[GPU...|HOST]"),
    "reset": (1, 1, "GPU"),
    "health": (0, 0, ""),
    "release": (1, 1, "GPU"),
    "forget": (1, 1, "HOST"),
    "why": (1, 2, "N [KIND]"),
    "exporter": (0, 0, ""),
}


@command("dlapp-gpu", example="dlapp-gpu list")
@click.argument("action", metavar="ACTION", type=ActionChoice(list(_WORDS)))
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--host", help="quarantine, heal, drain, release: the GPU's host; by default this host.")
@click.option("--force", is_flag=True, help="release: also if the application has not ended.")
@click.option("--reason", default="", help="quarantine, drain: the reason, shown by list.")
@click.option("--wait", is_flag=True, help="drain: until nobody uses it.")
@click.option(
    "--timeout",
    metavar="DURATION",
    help="gc HOST: time limit for each host, such as 10m; by default 120s. drain --wait: time limit; by default none.",
)
@click.option("--forgotten", is_flag=True, help="list: also hosts that were forgotten.")
@click.option("--listen", metavar="HOST:PORT", help=f"exporter: address to listen on; by default {LISTEN}.")
@click.option("--original", is_flag=True, help='list: print {"host01": {"gpu0": "application_..."}}.')
@json_option("Print the answer as JSON.")
def main(
    action: str,
    words: tuple[str, ...],
    host: str | None,
    force: bool,
    reason: str,
    wait: bool,
    timeout: str | None,
    forgotten: bool,
    listen: str | None,
    original: bool,
    as_json: bool,
) -> int:
    """Show which GPU belongs to whom, and take a GPU out of use or back into it.

    \b
    list [HOST]        a line for each GPU: model, load (on this host), holder, quarantine
    gc [HOST]...       reclaim leases whose programs are gone: of this host, or of others,
                       by an application of one container on each
    quarantine GPU...  stop leasing GPUs; their holders keep them
    heal GPU...|HOST   lease them again, or all of a host
    drain [GPU...|HOST]
                       stop leasing GPUs, or all of a host (by default this one), and show who
                       still uses them and until when; exit code 0 if nobody does
    reset GPU          as root: reset a GPU of this host that nobody uses, inspect it, lease it again
    health             for the health script of a NodeManager: print ERROR and the GPU if this
                       machine must get no containers
    release GPU        end the lease of a container whose application ended over an hour ago,
                       where nothing shows that its program is gone; --force: of any
    forget HOST        no longer list a host that was removed from the cluster
    why N [KIND]       where N GPUs are free for one container; if nowhere, why. KIND is whole,
                       mig or mig:PROFILE, as gpu= in a properties file
    exporter           serve this host's GPUs as metrics for Prometheus until it is ended

    GPU is an index (2, gpu2), a uuid or a PCI bus id. A GPU split by MIG means all its slices.
    """
    options = {"host": host, "force": force, "reason": reason, "timeout": timeout, "listen": listen, "wait": wait}
    _check(action, words, **options, forgotten=forgotten, original=original)
    timeout_s = None if timeout is None else read_duration("--timeout", timeout, minimum_s=1)
    from dlapp.tools.machine import gpu_maintenance as maintenance

    if action == "health":
        return maintenance.health(as_json=as_json)
    from dlapp.client.machine.gpu_ledger import GpuLedger
    from dlapp.config import load_config

    config = load_config()
    with GpuLedger(config, is_display=action in ("list", "exporter")) as ledger:
        if action == "list":
            return _list(ledger, words[0] if words else None, forgotten=forgotten, original=original, as_json=as_json)
        if action == "exporter":
            return _export(ledger, listen or LISTEN)
        if action == "why":
            return _why(ledger, words, as_json=as_json)
        if action == "gc" and words:
            return _collect_on(config, ledger, words, timeout_s=timeout_s or GC_TIMEOUT_S, as_json=as_json)
        if action in ("gc", "release", "forget"):
            done, lines = _end_leases(ledger, action, words, host, None if force else partial(_ended_ms, config))
            print_json(done) if as_json else say(*lines)
            return 0
        if action == "drain":
            return maintenance.drain(
                config, ledger, words, host=host, reason=reason, wait=wait, timeout_s=timeout_s, as_json=as_json
            )
        if action == "quarantine":
            return maintenance.quarantine(ledger, words, host=host, reason=reason, as_json=as_json)
        if action == "heal":
            return maintenance.heal(ledger, words, host=host, as_json=as_json)
        return maintenance.reset(config, ledger, words[0], as_json=as_json)


def _export(ledger: GpuLedger, address: str) -> int:
    from dlapp.client.machine.exporter import serve

    serve(ledger, address)
    return 0


def _why(ledger: GpuLedger, words: tuple[str, ...], *, as_json: bool) -> int:
    from dlapp.tools.display import gpu as show

    count = _number(words[0])
    answer = ledger.why(count, *words[1:])
    print_json(answer) if as_json else say(*show.why_lines(answer, count))
    return 0 if answer["can"] else EXIT_FAILED


def _end_leases(
    ledger: GpuLedger,
    action: str,
    words: tuple[str, ...],
    host: str | None,
    ended_ms: Callable[[str], int | None] | None,
) -> tuple[dict[str, Any], list[str]]:
    """Reclaim the leases of this host, release one, or forget a host; return the answer and its lines.

    Args:
        ledger: the ledger.
        action: ``gc``, ``release`` or ``forget``.
        words: of the command.
        host: of the GPU to release; None: this host.
        ended_ms: returns when an application ended; None: a lease is released whether or not it has.
    """
    from dlapp.client.operations.connections import caller
    from dlapp.tools.display import gpu as show

    if action == "gc":
        leases = ledger.reclaim()
        return {"host": ledger.host_name, "leases": leases}, show.collect_lines(leases, ledger.host_name)
    if action == "forget":
        ledger.forget(words[0], by=caller())
        return {"host": words[0]}, [f"{words[0]}: forgotten; it is listed again when it requests a GPU"]
    done = ledger.release(words[0], host=host, by=caller(), ended_ms=ended_ms)
    what = f"{done['host']}: {', '.join(done['devices'])} of {done['container']}"
    return done, [f"{what}: released; if its program still runs: dlapp-kill {done['application']}"]


def _ended_ms(config: Config, application: str) -> int | None:
    from dlapp.client import Client
    from dlapp.values.ids import ApplicationId

    with Client(config) as client:
        return client.status(ApplicationId.from_text(application)).finished_ms


def _list(ledger: GpuLedger, host: str | None, *, forgotten: bool, original: bool, as_json: bool) -> int:
    from dlapp.system import clock
    from dlapp.tools.display import gpu as show

    if original:
        _print_pieces("{", (f"{_json(name)}: {_json(devices)}" for name, devices in ledger.original(host)), "}")
        return 0
    code = 0

    def printed(views: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        nonlocal code
        for one in views:
            if one["error"]:
                note(one["error"])
                code = EXIT_FAILED
            yield one

    views = printed(ledger.hosts(host, forgotten=forgotten))
    if as_json:
        _print_pieces('{"hosts": [', map(_json, views), "]}")
    else:
        now_ms = clock.now_ms()
        lines: list[str] = []
        for one in views:
            lines += show.host_lines(one, now_ms)
            if len(lines) >= LINES_AT_ONCE:
                say(*lines)
                lines = []
        if lines:
            say(*lines)
    problems = sorted(ledger.problems.items())
    for path, problem in problems[:MAX_PROBLEMS]:
        note(f"{path}: {problem}")
    if len(problems) > MAX_PROBLEMS:
        note(f"and {len(problems) - MAX_PROBLEMS} more like these")
    return code


def _print_pieces(begin: str, pieces: Iterable[str], end: str) -> None:
    """Print one JSON document piece by piece: that of a large cluster is too large to hold in memory at once. An error
    before the first piece, such as an unknown host, leaves the output empty."""
    left = iter(pieces)
    first = list(islice(left, 1))
    click.echo(begin, nl=False)
    for place, piece in enumerate(chain(first, left)):
        click.echo(("\n" if place == 0 else ",\n") + piece, nl=False)
    click.echo(end)


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


def _check(action: str, words: tuple[str, ...], **options: Any) -> None:
    least, most, form = _WORDS[action]
    if not least <= len(words) <= most:
        at_a_time = ", one at a time" if most == 1 < len(words) else ""
        raise UsageError(f"{action} takes {form or 'no word'}{at_a_time}: dlapp-gpu {action} {form}".rstrip())
    allowed = {
        "list": ("forgotten", "original"),
        "gc": ("timeout",) if words else (),
        "quarantine": ("host", "reason"),
        "heal": ("host",),
        "drain": ("host", "reason", "wait", *(("timeout",) if options["wait"] else ())),
        "release": ("host", "force"),
        "exporter": ("listen",),
    }
    for name, value in options.items():
        if value and name not in allowed.get(action, ()):
            needs = {
                ("drain", "timeout"): "--timeout needs --wait",
                ("gc", "timeout"): "--timeout is for gc HOST",
                ("list", "host"): f"list takes the host without --host: dlapp-gpu list {value}",
            }
            raise UsageError(needs.get((action, name), f"--{name} is not for {action}"))


def _collect_on(config: Config, ledger: GpuLedger, hosts: Sequence[str], *, timeout_s: float, as_json: bool) -> int:
    from dlapp.client import Client
    from dlapp.client.node_runs import reclaim_on
    from dlapp.tools.display import gpu as show

    def all_of_them() -> Iterator[dict[str, Any]]:
        if ledger.host_name in hosts:
            yield {"host": ledger.host_name, "error": "", "leases": ledger.reclaim()}
        if others := [one for one in hosts if one != ledger.host_name]:
            if not (ledger.is_cluster or ledger.is_of_nodes):
                raise UsageError(f"the GPU ledger is of this machine, {ledger.host_name}, not of {', '.join(others)}")
            yield from reclaim_on(Client(config), others, timeout_s=timeout_s)

    found, code = [], 0
    for one in all_of_them():
        if one["error"]:
            note(f"{one['host']}: not reached: {one['error']}")
            code = EXIT_UNREACHABLE
        elif not as_json:
            say(*show.collect_lines(one["leases"], one["host"]))
        found.append(one)
    if as_json:
        print_json({"hosts": found})
    return code


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"why takes a number of GPUs, not {text!r}") from None
