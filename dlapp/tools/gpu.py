"""dlapp-gpu: which GPU belongs to whom, and what an operator can do about it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from dlapp.errors import EXIT_FAILED, UsageError
from dlapp.tools.common import command, json_option, note, print_json, run, say

if TYPE_CHECKING:
    from dlapp.client.gpus import Gpus

_WORDS = {
    "list": (0, 1, "[HOST]"),
    "gc": (0, 1000, ""),
    "quarantine": (1, 1, "CARD"),
    "heal": (1, 1, "CARD"),
    "forget": (1, 1, "HOST"),
    "why": (1, 1, "N"),
}


@command("dlapp-gpu", example="dlapp-gpu list")
@click.argument("action", metavar="ACTION", type=click.Choice(list(_WORDS)))
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--host", help="quarantine, heal: the card's host; without it this one.")
@click.option("--reason", default="", help="quarantine: why, for those who find it.")
@click.option("--forgotten", is_flag=True, help="list: also hosts that were forgotten.")
@click.option("--original", is_flag=True, help='list: print {"host01": {"gpu0": "application_..."}}.')
@json_option("Print the answer as JSON.")
def gpu(
    action: str, words: tuple[str, ...], host: str | None, reason: str, forgotten: bool, original: bool, as_json: bool
) -> int:
    """Show which GPU belongs to whom, and take a card out of use or back into it.

    \b
    list [HOST]        a line for each card: model, load (on this host), holder, quarantine
    gc                 free what is held for payloads that are gone; on the host it runs on
    quarantine CARD    give a card out no more; who holds it keeps it
    heal CARD          give it out again
    forget HOST        a host of the cluster does not come back: list it no more
    why N              can an ask of N GPUs be met now on some host; what is in the way

    CARD is an index (2, gpu2), a uuid or a PCI bus id.
    """
    _check(action, words, host=host, reason=reason, forgotten=forgotten, original=original)
    from dlapp.client import caller
    from dlapp.client.gpus import Gpus
    from dlapp.config import load_config
    from dlapp.tools import gpus as show

    with Gpus(load_config()) as ledger:
        if action == "list":
            return _list(ledger, words[0] if words else None, forgotten=forgotten, original=original, as_json=as_json)
        if action == "why":
            count = _number(words[0])
            answer = ledger.why(count)
            print_json(answer) if as_json else say(*show.why_lines(answer, count))
            return 0 if answer["can"] else EXIT_FAILED
        if action == "gc":
            _check_here(words, ledger.here)
            leases = ledger.collect()
            done: Any = {"host": ledger.here, "leases": leases}
            lines = show.collect_lines(leases, ledger.here)
        else:
            done = {"host": host or ledger.here}
            if action == "quarantine":
                ledger.quarantine(words[0], host=host, reason=reason, by=caller())
                lines = [f"{done['host']}: {words[0]} is in quarantine until dlapp-gpu heal {words[0]}"]
            elif action == "heal":
                ledger.heal(words[0], host=host)
                lines = [f"{done['host']}: {words[0]} is given out again"]
            else:
                ledger.forget(words[0], by=caller())
                done = {"host": words[0]}
                lines = [f"{words[0]}: forgotten; it is known again as soon as it asks for a GPU"]
        print_json(done) if as_json else say(*lines)
        return 0


def _list(ledger: Gpus, host: str | None, *, forgotten: bool, original: bool, as_json: bool) -> int:
    from dlapp.tools import gpus as show

    if original:
        _print_pieces("{", (f"{_json(name)}: {_json(cards)}" for name, cards in ledger.original(host)), "}")
        return 0
    code = 0

    def told(views: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        nonlocal code
        for one in views:
            if one["error"]:
                note(one["error"])
                code = EXIT_FAILED
            yield one

    views = told(ledger.hosts(host, forgotten=forgotten))
    if as_json:
        _print_pieces('{"hosts": [', map(_json, views), "]}")
    else:
        now_ms = time.time_ns() // 1_000_000
        for one in views:
            if lines := show.host_lines(one, now_ms):
                say(*lines)
    return code


def _print_pieces(begin: str, pieces: Iterable[str], end: str) -> None:
    """One JSON document, piece by piece: of a large cluster it is larger than what a tool should hold at once."""
    click.echo(begin, nl=False)
    for place, piece in enumerate(pieces):
        click.echo(("\n" if place == 0 else ",\n") + piece, nl=False)
    click.echo(end)


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


def _check(action: str, words: tuple[str, ...], **options: Any) -> None:
    least, most, form = _WORDS[action]
    if not least <= len(words) <= most:
        raise UsageError(f"{action} takes {form or 'no word'}: dlapp-gpu {action} {form}".rstrip())
    allowed = {"list": ("forgotten", "original"), "quarantine": ("host", "reason"), "heal": ("host",)}
    for name, value in options.items():
        if value and name not in allowed.get(action, ()):
            raise UsageError(f"--{name} is not for {action}")


def _check_here(words: tuple[str, ...], here: str) -> None:
    if others := [one for one in words if one != here]:
        raise UsageError(f"gc acts on the host it runs on, {here}: run it on {', '.join(others)}")


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"why takes a number of GPUs, not {text!r}") from None


def main() -> None:
    """The console script."""
    run(gpu)


if __name__ == "__main__":
    main()
